"""The twin of train.c in PyTorch.

    [DEVICE=host|cuda] train.py [--compile] NET[-bf16|-tf32|-fast|-default][-adam][-clip][@BATCH[xLENGTH]] DEVICES THREADS [SECONDS [SHARD]]
    [DEVICE=host|cuda] train.py --profile NET...
    [DEVICE=host|cuda] train.py --serve

With DEVICES 1 one process, with more DistributedDataParallel over gloo, or NCCL on as many GPUs. Convolution nets
are timed in both memory formats and the faster is printed: "NET DEVICESxTHREADS MEDIAN_SECONDS STEPS LOSS CPU_SECONDS
WHOLE ADDED FORMAT"; train.c tells of the words. Of several processes processor time and memory are sums.
SHARD is none (DistributedDataParallel), optimizer (fully_shard whose units stay gathered until the step) or parameters
(fully_shard). A Sequential's children are units, and a GPT's layers. Then each memory format is a run and a line of its
own, behind which stand the megabytes that the first process's training takes at most, with and without the making of
the model, as train.c counts them. With -fused behind SHARD the optimizer's kernel is fused; with -checkpoint units
compute their activations again in backward; with -offload units lie on the CPU by the policy for that.
With --compile torch.compile makes the network. The exit status is 3 if this PyTorch can have no such step.
--profile prints which kernels (on the host: operations) take the time of a step, in the faster format. --serve
reads such arguments, with DEVICES 1, from standard input, a line for each net: PyTorch, which takes ten seconds to
start on a GPU, starts once.

On GPUs NET-default is PyTorch as its users have it. Other rows change two switches: cuDNN measures its algorithms
(cudnn.benchmark, off by default), and f32 is rounded to tf32 only for NET-tf32, in convolutions and matrix products both
(by default in convolutions alone).
"""

import contextlib
import gc
import io
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from kernels import show_kernels
from nets import ENTROPY, LOSSES_OF_GRADIENTS, Tokens, adam, parse

WARMUP_STEPS = 3
CUDA_BLOCK = 10  # steps, at whose end a GPU is waited for
NO_SUCH_STEP = 3  # exit status
ON_CUDA = os.environ.get("DEVICE", "host") == "cuda"


def home(rank):
    return torch.device("cuda", rank) if ON_CUDA else torch.device("cpu")


def wait():
    if ON_CUDA:
        torch.cuda.synchronize()


def shards(how):
    return "optimizer" in how or "parameters" in how


def data(workload, device):
    """Drawn on the CPU, after the network."""
    batch, input_shape, target_shape, classes, *_ = workload
    size = (batch, *input_shape)
    x = torch.randint(0, input_shape.count, size) if isinstance(input_shape, Tokens) else torch.randn(size)
    shape = (batch, *target_shape)
    target = torch.randint(0, classes, shape) if classes else torch.randn(shape)
    return x.to(device), target.to(device)


def units_of(net):
    children = net.h if hasattr(net, "h") else net.children()
    return [child for child in children if any(True for _ in child.parameters())]


def resident_peak(sharers):
    """The twin of job_resident_peak."""
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    most, files, shared = (1024 * int(status[name].split()[0]) for name in ("VmHWM", "RssFile", "RssShmem"))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return most - files - shared * (sharers - 1) / sharers


def shard_fully(net, how):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    offload = CPUOffloadPolicy(pin_memory=False) if "offload" in how else OffloadPolicy()
    units = units_of(net)
    if "checkpoint" in how:
        apply_activation_checkpointing(net, check_fn=lambda module: any(module is unit for unit in units))
        units = units_of(net)
    for module in [*units, net]:
        fully_shard(module, reshard_after_forward=None if "parameters" in how else False, offload_policy=offload)
    return net


def load_libraries(how):
    """One step of a small net, so that what PyTorch loads then is not counted as memory of the training."""
    if how:
        tiny = 2, (8,), (), 8, lambda: nn.Sequential(nn.Linear(8, 8)), ENTROPY, adam
        prepare(tiny, "f32", dist.get_world_size(), dist.get_rank(), torch.contiguous_format, how=how)()


def prepare(workload, precision, devices, rank, memory_format, compiled=False, how=()):
    """A function that takes one step and returns its loss."""
    _, _, _, classes, network, loss_of, optimizer_of = workload
    device = home(rank)
    torch.manual_seed(0)
    net = network().to(device)
    x, target = data(workload, device)
    if devices > 1:
        x = x.chunk(devices)[rank].contiguous()
        target = target.chunk(devices)[rank].contiguous()
    if x.dim() == 4:
        if not shards(how):  # fully_shard takes contiguous parameters alone
            net = net.to(memory_format=memory_format)
        x = x.to(memory_format=memory_format)
        if not classes:
            target = target.to(memory_format=memory_format)
    if shards(how):
        model = shard_fully(net, how)
    elif devices > 1:
        model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=getattr(net, "broadcast_buffers", True))
    else:
        model = net
    optimizer = optimizer_of(model.parameters())
    if "fused" in how:
        optimizer = type(optimizer)(model.parameters(), **optimizer.defaults | {"fused": True})
    if compiled:
        torch._dynamo.reset()
        model = torch.compile(model)

    def step():
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = loss_of(model, x, target, rank, devices)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    return step


def measure(step, devices, budget, device):
    """(median seconds, steps, loss of the fourth step, median processor seconds, peak of resident memory before the
    timed steps)"""
    for _ in range(WARMUP_STEPS):
        step()
    loss = step().detach().float().clone()
    wait()
    making = resident_peak(devices)
    block = CUDA_BLOCK if ON_CUDA else 1
    seconds, processor = [], []
    start = time.perf_counter()
    while True:
        busy = len(seconds) < 5 or time.perf_counter() - start < budget
        going_on = torch.tensor(int(busy), device=device)
        if devices > 1:
            dist.broadcast(going_on, 0)  # outside of the time: all ranks take the same steps
        if not going_on:
            break
        begin, begun = time.perf_counter(), time.process_time()
        for _ in range(block):
            step()
        wait()
        seconds.append((time.perf_counter() - begin) / block)
        processor.append((time.process_time() - begun) / block)
    if devices > 1:
        dist.all_reduce(loss)
    cpu = statistics.median(processor)
    return statistics.median(seconds), block * len(seconds), loss.item() / devices, cpu, making


def choose_algorithms(precision):
    tf32, default = precision == "tf32", precision == "default"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32 or default
    torch.backends.cudnn.benchmark = not default


def formats_of(workload):
    formats = {"channels-first": torch.contiguous_format}
    if len(workload[1]) == 3:
        formats["channels-last"] = torch.channels_last
    return formats


def run(rank, spelling, devices, threads, budget, compiled, store, how=(), labels=()):
    torch.set_num_threads(threads)
    workload, precision = parse(spelling)
    if ON_CUDA:
        torch.cuda.set_device(rank)
        choose_algorithms(precision)
    if devices > 1:
        dist.init_process_group(
            "nccl" if ON_CUDA else "gloo", init_method=f"file://{store}", rank=rank, world_size=devices
        )
    results = []
    for label, memory_format in formats_of(workload).items():
        if how and label not in labels:
            continue
        load_libraries(how)
        start = resident_peak(devices)  # begins anew
        before = resident_peak(devices)
        step = prepare(workload, precision, devices, rank, memory_format, compiled, how)
        *figures, cpu, making = measure(step, devices, budget, home(rank))
        stepping = resident_peak(devices)
        peak = max(making, stepping)
        sums = torch.tensor([cpu, max(start, peak) / 1e6, (peak - before) / 1e6], device=home(rank))
        if devices > 1:
            dist.all_reduce(sums)
        cpu, whole, added = sums.tolist()
        words = f"{cpu:.6f} {whole:.1f} {added:.1f} {label}"
        if how:
            words = f"{label} {(peak - before) / 1e6:.1f} {(stepping - before) / 1e6:.1f}"
        results.append((*figures, words))
        del step
        gc.collect()  # the next format's memory is its own
    if rank == 0:
        median, steps, loss, words = min(results)
        print(f"{spelling} {devices}x{threads} {median:.6f} {steps} {loss:.6f} {words}", flush=True)
    if devices > 1:
        dist.destroy_process_group()


def profile(spelling):
    workload, precision = parse(spelling)
    if ON_CUDA:
        choose_algorithms(precision)
    best = None
    for label, memory_format in formats_of(workload).items():
        step = prepare(workload, precision, 1, 0, memory_format)
        seconds, *_ = measure(step, 1, 0.2, home(0))
        if best is None or seconds < best[0]:
            best = seconds, label, step
    seconds, label, step = best
    kind = torch.profiler.ProfilerActivity.CUDA if ON_CUDA else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as profiler:
        step()
        wait()
    rows = [
        (event.key, event.count, (event.self_device_time_total if ON_CUDA else event.self_cpu_time_total) / 1e3)
        for event in profiler.key_averages()
    ]
    print(f"{label}, {1000 * seconds:.3f} ms per step without the profiler")
    show_kernels(rows)


def version():
    if ON_CUDA:
        gpus = torch.cuda.device_count()
        names = ", ".join(sorted({torch.cuda.get_device_name(i) for i in range(gpus)}))
        return (
            f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
            f"cuDNN {torch.backends.cudnn.version()}; {gpus} x {names}"
        )
    built = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    if built and built[1] != "generic":
        return f"PyTorch {torch.__version__}, BLAS {built[1]}"
    blas = {os.path.realpath(line.split()[-1]) for line in open("/proc/self/maps") if "blas" in line}
    return f"PyTorch {torch.__version__}, BLAS {', '.join(sorted(blas)) or 'of its own'}"


def why_not(spelling, devices, compiled):
    """Why this PyTorch can have no such step; None if it can."""
    (batch, _, _, _, _, loss, _), _ = parse(spelling)
    if batch < devices:
        return f"{batch} samples are too few for {devices} devices"
    if compiled and not hasattr(torch, "compile"):
        return "this PyTorch has no torch.compile"
    if compiled and loss in LOSSES_OF_GRADIENTS:
        return "torch.compile takes no backward of a backward"
    return None


def take(arguments):
    """Does what the command line says; the exit status."""
    if arguments == ["--version"]:
        print(version())
        return 0
    if arguments == ["--gpus"]:
        print(torch.cuda.device_count())
        return 0
    if arguments[0] == "--profile":
        for net in arguments[1:]:
            print(f"---- {net}, PyTorch's kernels")
            profile(net)
            forget()
        return 0
    compiled = arguments[0] == "--compile"
    name, devices, threads, *rest = arguments[1 if compiled else 0 :]
    devices, threads, budget = int(devices), int(threads), float(rest[0]) if rest else 3.0
    how = rest[1].split("-") if len(rest) > 1 else ()
    if reason := why_not(name, devices, compiled):
        print(f"{name}: {reason}", file=sys.stderr)
        return NO_SUCH_STEP
    if devices == 1:
        run(0, name, 1, threads, budget, compiled, None)
        return 0
    for label in formats_of(parse(name)[0]) if how else [None]:
        with tempfile.TemporaryDirectory() as folder:
            store = os.path.join(folder, "store")
            mp.spawn(run, (name, devices, threads, budget, compiled, store, how, [label]), devices)
    return 0


def forget():
    """Gives back what the last net took of the GPU."""
    gc.collect()
    if dynamo := sys.modules.get("torch._dynamo"):  # what torch.compile keeps of a net
        dynamo.reset()
    if ON_CUDA:
        torch.cuda.empty_cache()


def serve():
    """Answers each line of arguments with a line: the exit status and the last line printed. Ends after an exception,
    which may have left the GPU unusable."""
    for line in sys.stdin:
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                status = take(line.split())
        except Exception as error:
            status = 1
            output.write(f"\n{type(error).__name__}: {error}")
        answer = (output.getvalue().strip().splitlines() or ["without a word"])[-1]
        print(status, answer, flush=True)
        if status == 1:
            sys.exit(1)
        forget()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        sys.exit(take(sys.argv[1:]))
