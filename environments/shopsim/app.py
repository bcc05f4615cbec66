"""shopsim for OpenEnv's tools: uvicorn app:app --port 8000. For everything else there is shopping-grpo serve --env shopsim."""
import os
from shopping_grpo.serve_openenv import root_app

app = root_app('shopsim', size=os.environ.get('SHOP_SIZE', 'tiny'), split=os.environ.get('SHOP_SPLIT', 'train'), capacity=int(os.environ.get('SHOP_SESSIONS', 64)))
