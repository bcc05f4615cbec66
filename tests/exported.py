"""Fail when the package is not exactly what the notebooks export, or when a notebook is not clean."""
import pathlib, subprocess, sys

root = pathlib.Path(__file__).resolve().parents[1]
bin = pathlib.Path(sys.executable).parent


def snapshot():
    return {p: p.read_bytes() for d, ext in (('shopping_grpo', '*.py'), ('nbs', '*.ipynb')) for p in sorted((root/d).rglob(ext)) if '.ipynb_checkpoints' not in p.parts}


before = snapshot()
for command in ('nbdev-export', 'nbdev-clean'): subprocess.run([bin/command], cwd=root, check=True)
after = snapshot()
changed = sorted(str(p.relative_to(root)) for p in before.keys() | after.keys() if before.get(p) != after.get(p))
if changed: sys.exit(f"not what the notebooks export, or not clean: {', '.join(changed)}; run nbdev-export and nbdev-clean and commit (they have just been run)")
print(f'{len(after)} files: the package is what the notebooks export')
