"""A CPU as a platform of verl. It registers by verl's own hook when VERL_USE_EXTERNAL_MODULES names this module, and mends what asks for an accelerator in three places."""
import contextlib, importlib, os, resource, socket, sys, time, types
from contextlib import contextmanager
import torch
import torch.distributed as dist
import torch.distributed.fsdp as fsdp
from verl.plugin.platform import PlatformBase, PlatformRegistry

PAGE = os.sysconf('SC_PAGE_SIZE')
ALL = PAGE * os.sysconf('SC_PHYS_PAGES')


def resident(*_, **__) -> int:  # bytes of this process now
    with open('/proc/self/statm') as f: return PAGE * int(f.read().split()[1])

def highest(*_, **__) -> int:  # bytes of this process at most
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def namespace() -> types.ModuleType:
    """What `torch.cuda` is elsewhere: memory is that of the process, streams and caches do nothing."""
    here, nothing = types.ModuleType('shop_verl_cpu.device'), lambda *_, **__: None
    quiet = dict.fromkeys('set_device synchronize empty_cache ipc_collect reset_peak_memory_stats set_per_process_memory_fraction'.split(), nothing)
    facts = dict(is_available=lambda: True, device_count=lambda: 1, current_device=lambda: torch.device('cpu'), get_device_name=lambda *_: 'CPU', get_device_capability=lambda *_: (0, 0),
        get_device_properties=lambda *_: types.SimpleNamespace(name='CPU', total_memory=ALL, major=0, minor=0, multi_processor_count=os.cpu_count()))
    memory = dict(memory_allocated=resident, memory_reserved=resident, max_memory_allocated=highest, max_memory_reserved=highest, mem_get_info=lambda *_: (PAGE * os.sysconf('SC_AVPHYS_PAGES'), ALL))
    streams = {n: getattr(torch.cpu, n) for n in ('Stream', 'Event', 'StreamContext') if hasattr(torch.cpu, n)} | dict(device=lambda *_: contextlib.nullcontext(), stream=lambda *_: contextlib.nullcontext(), current_stream=lambda *_: torch.cpu.current_stream())
    chance = dict(manual_seed=torch.manual_seed, manual_seed_all=torch.manual_seed, get_rng_state=lambda *_: torch.get_rng_state(), set_rng_state=lambda state, *_: torch.set_rng_state(state))
    for part in (quiet, facts, memory, streams, chance): vars(here).update(part)
    return here


DEVICE = namespace()


@PlatformRegistry.register(platform='cpu')
class CPU(PlatformBase):
    """One logical accelerator a process; processes speak over gloo, and weights travel through shared memory."""
    device_name = vendor_name = property(lambda self: 'cpu')
    device_module = property(lambda self: DEVICE)

    def is_available(self): return True
    def is_platform_available(self, use_smi_check=False): return os.environ.get('VERL_PLATFORM') == 'cpu'
    def current_device(self): return torch.device('cpu')
    def device_count(self): return 1
    def set_device(self, device_index): pass
    def synchronize(self, device_index=None): pass
    def manual_seed(self, seed): torch.manual_seed(seed)
    def manual_seed_all(self, seed): torch.manual_seed(seed)
    def set_allocator_settings(self, settings): pass
    def empty_cache(self): pass
    def get_device_capability(self, device_index=0): return None, None
    def communication_backend_name(self): return 'gloo'
    def visible_devices_envvar(self): return 'CUDA_VISIBLE_DEVICES'
    def profiler_start(self): pass
    def profiler_stop(self): pass
    def ray_resource_name(self): return 'GPU'  # verl counts only GPU and NPU; Ray hands out logical ones
    def ray_noset_envvars(self): return ['RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES']
    def is_ipc_supported(self): return False
    def cudart(self): return None

    @contextmanager
    def nvtx_range(self, msg): yield


def one_backend():
    """verl asks for `cpu:gloo` and for the device's backend, which is the same here; torch refuses a device named twice."""
    first = dist.init_process_group
    def begin(backend=None, *args, **how): return first('gloo' if backend == 'cpu:gloo,cpu:gloo' else backend, *args, **how)
    dist.init_process_group = begin

def no_pinned_memory():
    """The reference model is built with pinned memory, which needs an accelerator."""
    class Unpinned(fsdp.CPUOffloadPolicy):
        def __init__(self, pin_memory=False): super().__init__(pin_memory=False)
    fsdp.CPUOffloadPolicy = Unpinned

def no_value_head():
    """verl reads a class out of trl that releases from 1.13 on no longer have; only critics need it."""
    if importlib.util.find_spec('trl') is None: return
    try: importlib.import_module('trl.experimental.ppo')
    except ImportError: sys.modules['trl.experimental.ppo'] = types.SimpleNamespace(AutoModelForCausalLMWithValueHead=type('AutoModelForCausalLMWithValueHead', (torch.nn.Module,), {}))


def patience(seconds=600):
    """Ray gives its own processes a quarter of a minute to say which ports they took, and half a minute to come up: not enough on a busy machine. So it is told the ports beforehand, does without its dashboard, and the driver waits longer."""
    import ray._private.utils
    from ray._private import node, services
    from ray._raylet import persist_port
    look, start = services.get_node, node.Node.start_ray_processes
    def wait(*args, **how):
        end = time.monotonic() + seconds
        while True:
            try: return look(*args, **how)
            except RuntimeError:
                if time.monotonic() > end: raise
                time.sleep(1)
    def told(self):
        with socket.socket() as s:
            s.bind(('127.0.0.1', 0))
            self._ray_params.runtime_env_agent_port = s.getsockname()[1]
        ports = dict(metrics_agent_port=-1, metrics_export_port=-1, dashboard_agent_listen_port=-1, runtime_env_agent_port=self._ray_params.runtime_env_agent_port)
        for name, port in ports.items(): persist_port(self._session_dir, self._node_id, name, port)
        return start(self)
    ray._private.utils.get_dashboard_dependency_error = lambda: ImportError('there is no dashboard here')
    services.get_node, node.Node.start_ray_processes = wait, told


patience(); one_backend(); no_pinned_memory(); no_value_head()
