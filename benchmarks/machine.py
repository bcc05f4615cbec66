"""Name the machine a number was measured on."""
import os, platform


def machine() -> str:
    "CPU model, cores, memory and Python, in one line."
    model = next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), platform.processor()) if os.path.exists('/proc/cpuinfo') else platform.processor()
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
    return f'{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}'


def resident() -> dict:
    "Memory of this process in MB: now, at its peak, its own, and mapped files."
    names = dict(VmRSS='all', VmHWM='peak', RssAnon='own', RssFile='files')
    return {names[k]: int(v.split()[0]) // 1024 for k, v in (l.split(':') for l in open('/proc/self/status')) if k in names}


def table(rows):
    "Print rows of (what, value, bar, ok)."
    width = max(len(r[0]) for r in rows)
    for what, value, bar, ok in rows: print(f"{what:<{width}}  {value:>28}  {bar:<18} {'' if ok is None else 'ok' if ok else 'MISSED'}")
