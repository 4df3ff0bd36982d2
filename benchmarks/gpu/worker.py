"""Runs cases on the GPU, in a process of its own: `python -m benchmarks.gpu.worker`.

The first line of standard input is JSON: `module`, the path of `_vit_cuda`; `kind`, "checks" or
"times"; `names` of the cases; of the times, `rounds`, and `variants`, dict from names to paths of
other builds of the module. For every case a line of JSON comes back:
`name`, `problems`, and for times `row`; `skipped` is the reason where a case cannot run here. After
an error that makes the GPU unusable for this process it ends with exit code 3.
"""

import importlib.util
import json
import sys


def load_module(path, variant=""):
    """The module `_vit_cuda` from a file; each variant that a process loads has another name."""
    # pybind11 returns what it has loaded by the same name, whatever the file.
    name = f"{variant}._vit_cuda" if variant else "_vit_cuda"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def main():
    import torch

    from benchmarks.gpu import cases, checks, report, times
    from benchmarks.gpu.tensors import Kernels

    request = json.loads(sys.stdin.readline())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    # Products of 16 bits are summed in float32, as the kernels sum them.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    kernels = Kernels(load_module(request["module"]))
    ours = {"ours": kernels}
    for name, path in request.get("variants", {}).items():
        ours[f"ours {name}"] = Kernels(load_module(path, name))
    all_cases = cases.checks() if request["kind"] == "checks" else cases.timings()
    by_name = {case.name: case for case in all_cases}
    for name in request["names"]:
        answer = {"name": name, "problems": []}
        try:
            if request["kind"] == "checks":
                answer["problems"] = checks.check(by_name[name], kernels)
                # The launch of a kernel returns before its errors are known.
                torch.cuda.synchronize()
            else:
                found = times.measure(by_name[name], ours, request["rounds"])
                answer["row"] = report.summary(by_name[name], found)
        except (MemoryError, torch.cuda.OutOfMemoryError) as error:
            answer["skipped"] = _first_line(error)
        except Exception as error:
            answer["problems"] = [_first_line(error)]
        usable = _is_usable()
        print(json.dumps(answer), flush=True)
        if not usable:
            sys.exit(3)
        # Memory that PyTorch keeps for later tensors may be most of it.
        torch.cuda.empty_cache()


def _first_line(error):
    text = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {text}"


def _is_usable():
    """Whether this process can still use the GPU: some errors of CUDA are for ever."""
    import torch

    from benchmarks.gpu.tensors import DEVICE

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device=DEVICE).item()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main()
