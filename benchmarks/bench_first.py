"""The path of somebody new: from a clean clone to the first bought product and its trajectory, after the install. No key, GPU, Java or network.

    python benchmarks/bench_first.py      # needs git; clones this checkout's last commit
"""
import os, shutil, subprocess, sys, tempfile, time
from pathlib import Path
from machine import machine, table

ROOT, BAR = Path(__file__).resolve().parents[1], 60


UP = "import fcntl, os, socket, struct, sys; fcntl.ioctl(socket.socket(), 0x8914, struct.pack('16sh14x', b'lo', 1)); os.execvp(sys.argv[1], sys.argv[1:])" # SIOCSIFFLAGS: loopback, which notebooks talk over


def no_network() -> list[str]:
    "A prefix for commands that shall see nothing but loopback; empty where this system allows no namespace."
    prefix = ['unshare', '-rn', sys.executable, '-c', UP]
    return prefix if shutil.which('unshare') and not subprocess.run([*prefix, 'true'], capture_output=True).returncode else []


def main():
    print(machine(), '\n')
    alone = no_network()
    with tempfile.TemporaryDirectory() as tmp:
        clone = Path(tmp)/'clone'
        subprocess.run(['git', 'clone', '-q', ROOT, clone], check=True)
        env = dict(PATH=f'{Path(sys.executable).parent}:/usr/bin:/bin', HOME=tmp, PYTHONPATH=str(clone), SHOPPING_GRPO_ROOT=str(clone), CUDA_VISIBLE_DEVICES='', LANG='C.UTF-8')
        start = time.perf_counter()
        said = subprocess.run([*alone, sys.executable, '-c', 'from shopping_grpo.cli import main; main()', 'play', '--policy', 'oracle'], cwd=clone, env=env, capture_output=True, text=True)
        seconds = time.perf_counter() - start
        page = clone/'reports'/'play.html'
        good = not said.returncode and 'purchased' in said.stdout and 'success: +1.00' in said.stdout and page.exists()
        if not good: raise SystemExit(said.stdout[-2000:] + said.stderr[-2000:])
        table([('network', 'none' if alone else 'there, as no namespace can be made', '', None), ('clean clone to first bought product and trajectory', f'{seconds:.1f} s', f'<= {BAR} s', seconds <= BAR), ('its page', f'{page.stat().st_size / 1e3:.0f} kB', '', None)])


if __name__ == '__main__': main()
