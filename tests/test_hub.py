"""Cards say what the run says, a push is dry unless told otherwise, and what is private stays."""
import base64, json, os, shutil, subprocess, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import pytest
pytest.importorskip('huggingface_hub', reason='huggingface_hub is not installed: pip install -e ".[train]"')
from huggingface_hub import DatasetCard, HfApi, ModelCard
from shopping_grpo.collect import Job, collect, make_teacher, write_dataset
from shopping_grpo.core import DataError, PolicyError, atomic_write, canonical_json, file_digest
from shopping_grpo.datacard import write_card, write_sums
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.filter import PRIVATE
from shopping_grpo.hub import evaluations, model_card, push, weights_digest
from shopping_grpo.request import Requests
from shopping_grpo.store import Run, content_digest
from shopping_grpo.task import make_sheet, save_tasks, write_sheet

ROOT = Path(__file__).resolve().parents[1]
WORD = 'h' + 'f_' + 'Ab1' * 12


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    return tmp_path


def trained(root, name='one', stage='sft', model='tiny', start='', seen=((10, .5), (20, .45)), files=None, end=True, **config):
    run = Run.open(stage, name, dict(model=model, weights=start) | config, seeds=0, root=root/'runs')
    for n, text in ({'config.json': '{}', 'model.safetensors': f'weights of {stage} {name}'} if files is None else files).items(): atomic_write(run.path/'best'/n, text)
    for step, success in seen: run.log(step, loss=1.0, val_success=success, val_scored=40)
    if not seen: run.log(1, loss=1.0)
    run.finish() if end else run.close()
    return run


def played(root, name, policy, keys, wins, errored=0, split='test', done=True, **config):
    run = Run.open('eval', name, dict(env='shopsim', size='tiny', split=split, attempts=1, policy=policy) | config, [(k, 0) for k in keys], root=root/'runs', tries=1)
    for i, k in enumerate(keys[:None if done else 3]):
        bad = i >= len(keys) - errored
        run.add(dict(task_key=k, attempt=0, policy=policy, outcome='error' if bad else 'purchased', success=i < wins, n_steps=4, reward=dict(value=None if bad else float(i < wins), valid=not bad)))
    run.finish() if done else run.close()
    return run


@pytest.fixture(scope='module')
def tasks(tiny): return {s: Requests(tiny, seed=3).tasks(s, 40) for s in ('train', 'test')}


@pytest.fixture
def frozen(root, tiny, tasks): # the keys of a committed final set
    write_sheet(root/'data'/'splits'/'shopsim-tiny.json', make_sheet(tasks, tiny, 3))
    save_tasks(root/'data'/'built'/'tiny'/'tasks'/'shopsim-train.jsonl', tasks['train'])
    return [t.key for t in tasks['test']]


@pytest.fixture
def collection(root, tiny, tiny_engine, tasks, frozen):
    job = Job(tasks['train'], {'teacher': 1.0}, lambda spec: make_teacher(spec, tiny), lambda: ShopSim(tiny, tiny_engine), target=6)
    with Run.open('collect', 'few', dict(env='shopsim', size='tiny'), root=root/'runs') as run:
        write_dataset(run.path, *collect(run, job), tiny, job.mix, 0.0, config=dict(env='shopsim', size='tiny'))
    return run


# cards

def test_a_card_says_what_the_run_and_its_evaluations_say(root, frozen):
    first = trained(root)
    run = trained(root, 'two', 'grpo', 'runs/sft/one/best', weights_digest(first), recipe=dict(algorithm='dapo'))
    model = dict(model=dict(weights=content_digest(run.path/'best')))
    played(root, 'two', 'two', frozen[:20], 9, errored=2, **model)
    played(root, 'two-val', 'two', frozen[:5], 5, split='val', **model)
    played(root, 'oracle', 'oracle', frozen[:20], 20)
    played(root, 'elsewhere', 'oracle', frozen[5:], 35)                # other tasks
    played(root, 'first', 'one', frozen[:20], 1, model=dict(weights=weights_digest(first))) # another model
    played(root, 'unfinished', 'two', frozen[:20], 9, done=False, seed=1, **model)
    broken = played(root, 'changed', 'two', frozen[:20], 20, seed=2, **model)
    with open(broken.path/'episodes.jsonl', 'ab') as f: f.write(b'\n')
    table = evaluations(run)
    assert list(table.policy) == ['two', 'two', 'oracle'] and list(table.own) == [True, True, False] and list(table.planned) == [20, 5, 20] and table.success[0] == 9 / 20 and table.scored[0] == 18
    card = model_card(run)
    parsed = ModelCard(card).data
    assert [(r.metric_value, r.dataset_split) for r in parsed.eval_results] == [(0.45, 'test')] # only what was measured on the frozen set
    assert '20 of 40 tasks frozen as' in card and '45.0 % [' in card and 'not a frozen set' in card and '**two**' in card and 'oracle' in card and '100.0 % [' in card
    assert 'GRPO (dapo)' in card and f'`runs/sft/one/best` (weights `{weights_digest(first)[:12]}`); trained from `tiny`, made from a seed' in card and parsed.license == 'apache-2.0'
    assert all(file_digest(p) in card for p in (run.path/'best').iterdir()) and run.manifest['config_digest'] in card and run.manifest['versions']['numpy'] in card


@pytest.mark.parametrize('seen, says', [(((10, .5), (20, .45)), 'Step 20 of 20: 45.0 %'), (((10, .9), (20, .45)), 'Step 10 of 20: 90.0 %'), ((), 'Nothing was validated')])
def test_the_chosen_checkpoint_is_that_of_training(root, seen, says): assert says in model_card(trained(root, seen=seen))


def test_a_card_tells_what_is_not_known(root):
    "No evaluation, weights that no update changed, a base model whose licence is not ours, and no path of this machine."
    card = model_card(trained(root, model=str(root/'models'/'mine')))
    assert '**None.** No finished evaluation run names these weights' in card and '`models/mine`' in card and str(root) not in card and ModelCard(card).data.license is None
    hub = ModelCard(model_card(trained(root, 'hub', model='Qwen/Qwen3-0.6B'))).data
    assert hub.base_model == 'Qwen/Qwen3-0.6B' and hub.license is None and ModelCard(model_card(trained(root, 'smol', model='smollm2'))).data.base_model == 'HuggingFaceTB/SmolLM2-135M-Instruct'
    first = Run.load(root/'runs'/'sft'/'hub')
    same = trained(root, 'same', 'grpo', 'runs/sft/hub/best', weights_digest(first), files={p.name: p.read_text() for p in (first.path/'best').iterdir()}, recipe=dict(algorithm='grpo'))
    assert 'no update changed them' in model_card(same)


def test_the_card_of_a_collection_is_its_own_with_a_head(root, collection):
    done = push(collection, 'me/shop')
    assert done.kind == 'dataset' and done.card.endswith((collection.path/'CARD.md').read_text()) and DatasetCard(done.card).data.configs == [dict(config_name='default', data_files=[dict(split='train', path='sft/train.jsonl')])]
    assert set(done.files) == {'dataset.json', 'sft/train.jsonl', 'sft/validation.jsonl', 'sft/tools.json'} # no thoughts, no rejected rows


def test_a_catalogue_leaves_without_tasks(root, tiny, frozen):
    where = root/'data'/'built'/'tiny'
    shutil.copytree(tiny.path, where/'catalog')
    write_card(where, tiny); write_sums(where)
    done = push(where, 'me/shop')
    assert done.files and all(n.startswith('catalog/') for n in done.files) and '# Catalogue `tiny`' in done.card
    meta = json.loads((where/'catalog'/'catalog.json').read_text())
    atomic_write(where/'catalog'/'catalog.json', json.dumps(meta | dict(origin=dict(file='items.jsonl')))); write_sums(where)
    with pytest.raises(DataError, match='was imported from items.jsonl; whether its licence'): push(where, 'me/shop')


# what is refused

def refused(message, what, **how):
    with pytest.raises((DataError, PolicyError), match=message) as e: push(what, 'me/shop', **how)
    assert '\n' not in str(e.value)


def test_only_finished_and_unchanged_runs_of_models_and_collections(root, frozen, collection):
    refused('is not done but started', trained(root, 'half', end=False))
    refused('has no model in best/', trained(root, 'empty', files={}))
    refused('only models .* and collections', played(root, 'oracle', 'oracle', frozen, 40))
    run = trained(root)
    atomic_write(run.path/'best'/'model.safetensors', 'other weights')
    refused('best/model.safetensors changed since', run)
    refused('best/model.safetensors changed since', run.path)
    (collection.path/'sft'/'train.jsonl').write_text('')
    refused('sft/train.jsonl', collection)
    with pytest.raises(DataError, match='give OWNER/NAME'): push(run, 'nobody')


@pytest.mark.parametrize('text, says', [(f'{{"token": "{WORD}"}}', 'holds a key or a password'), ('{"url": "https://me:' + 'pass@host/"}', 'holds a key or a password'), (f'{{"x": "{PRIVATE}: take the blue one"}}', 'told in private'), ('{"goal": {"accepted": ["17-2"]}}', 'holds a goal'), ('"correct horse battery"', 'holds the value of SOME_API_KEY')])
def test_a_file_with_something_private(root, monkeypatch, text, says):
    monkeypatch.setenv('SOME_API_KEY', 'correct horse battery')
    refused(f'config.json .*{says}', trained(root, files={'config.json': text, 'model.safetensors': 'x'}))


def test_a_final_task_never_leaves(root, frozen): refused(f'names task {frozen[0]} of a final set', trained(root, files={'notes.md': f'it failed on {frozen[0]}', 'model.safetensors': 'x'}))


def sealed(run, change): # the rows changed, and every digest made to fit: only the content can tell
    rows = [json.loads(x) for x in (run.path/'sft'/'train.jsonl').read_text().splitlines()]
    change(rows)
    (run.path/'sft'/'train.jsonl').write_bytes(b''.join(canonical_json(r) + b'\n' for r in rows))
    facts = json.loads((run.path/'dataset.json').read_text())
    facts['files']['sft/train.jsonl'] = file_digest(run.path/'sft'/'train.jsonl')
    (run.path/'dataset.json').write_text(json.dumps(facts))
    manifest = json.loads((run.path/'manifest.json').read_text())
    manifest['outputs'] |= {n: file_digest(run.path/n) for n in ('sft/train.jsonl', 'dataset.json')}
    (run.path/'manifest.json').write_text(json.dumps(manifest))
    return run.path


def test_rows_are_examined_again(root, frozen, collection):
    "An id of the goal, or a final task, in rows whose hashes are all in order."
    goals = {json.loads(x)['key']: json.loads(x)['goal'] for x in (root/'data'/'built'/'tiny'/'tasks'/'shopsim-train.jsonl').read_text().splitlines()}
    push(sealed(collection, lambda rows: None), 'me/shop')
    def tell(rows): rows[1]['messages'][0]['content'] += ' buy ' + next(a for a in goals[rows[1]['task_key']]['accepted'] if '-' in a)
    refused(r'row \w+ holds .*, which is private', sealed(collection, tell))
    def swap(rows): rows[1]['messages'] = rows[0]['messages']; rows[1]['task_key'] = frozen[3]
    refused(f'names task {frozen[3]} of a final set', sealed(collection, swap))


# sending

class Hub(BaseHTTPRequestHandler):
    "As much of the Hub as an upload needs: create, preupload, commit; everything is sent inline."
    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        body = raw if self.path.split('/')[-2] == 'commit' else json.loads(raw or b'{}')
        self.server.asked.append((self.path, body, self.headers.get('Authorization')))
        if self.server.deny: return self._say({'error': 'who are you'}, 401)
        url = f'http://127.0.0.1:{self.server.server_port}'
        if 'preupload' in self.path: self._say({'files': [dict(path=f['path'], uploadMode='regular', shouldIgnore=False) for f in body['files']]})
        elif 'commit' in self.path: self._say(dict(commitUrl=f'{url}/me/shop/commit/1', commitOid='1', success=True))
        else: self._say(dict(url=f'{url}/me/shop'))
    def do_GET(self): self._say({'error': 'who are you'}, 401) if self.server.deny else self._say(dict(id='me/shop', sha='0', siblings=[]))
    def _say(self, what, code=200):
        text = json.dumps(what).encode()
        self.send_response(code); self.send_header('Content-Type', 'application/json'); self.send_header('Content-Length', str(len(text))); self.end_headers(); self.wfile.write(text)
    def log_message(self, *_): pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(('127.0.0.1', 0), Hub)
    server.asked, server.deny = [], False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown(); server.server_close()


def test_a_push_arrives_at_the_hub_and_a_dry_run_does_not(root, hub):
    "By the real client: a private repository, the files of the model under their names, and the card as README."
    run, api = trained(root), HfApi(f'http://127.0.0.1:{hub.server_port}', token='of a test')
    push(run, 'me/shop', api=api)
    assert hub.asked == []
    assert push(run, 'me/shop', dry_run=False, api=api).url.endswith('/commit/1')
    create, commit = hub.asked[0], next(b for p, b, _ in hub.asked if '/commit/' in p)
    sent = {x['value']['path']: base64.b64decode(x['value']['content']) for x in map(json.loads, commit.splitlines()) if x['key'] == 'file'}
    assert create[0].endswith('/repos/create') and create[1]['name'] == 'shop' and (create[1].get('private') or create[1].get('visibility') == 'private') and create[2] == 'Bearer of a test'
    assert set(sent) == {'README.md', 'config.json', 'model.safetensors', 'metrics.jsonl'} and sent['model.safetensors'] == (run.path/'best'/'model.safetensors').read_bytes() and sent['README.md'].decode() == model_card(run)


def test_a_hub_that_says_no_or_is_not_there_is_one_line(root, hub):
    run = trained(root)
    hub.deny = True
    refused('me/shop was not uploaded: .*401', run, dry_run=False, api=HfApi(f'http://127.0.0.1:{hub.server_port}', token='x'))
    refused('me/shop was not uploaded: .*; look at the network', run, dry_run=False, api=HfApi('http://127.0.0.1:9', token='x'))


def test_the_command(root, frozen):
    "Dry unless told otherwise; an error is one line."
    run = trained(root)
    shopping = lambda *args: subprocess.run([Path(sys.executable).parent/'shopping-grpo', *args], capture_output=True, text=True, env=os.environ | {'COLUMNS': '200', 'HF_ENDPOINT': 'http://127.0.0.1:9', 'HF_TOKEN': ''})
    dry = shopping('push', 'sft/one', 'me/shop')
    assert dry.returncode == 0 and 'dry run: nothing was sent to model me/shop' in dry.stdout and 'model.safetensors' in dry.stdout
    assert shopping('card', 'runs/sft/one').stdout.startswith('---\n')
    for args, says in ((('runs/sft/one', 'me/shop', '--really'), 'was not uploaded'), (('sft/none', 'me/shop'), 'there is no folder sft/none')):
        bad = shopping('push', *args)
        assert bad.returncode == 1 and says in bad.stderr and len(bad.stderr.strip().splitlines()) == 1
