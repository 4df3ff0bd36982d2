"""Times PyTorch's attention; bench_ops.py starts it in an environment with PyTorch.

Reads one JSON object per line. {"load": path of an .npy with a packed float32 projection, "heads",
"dtype", "backward", "threads"} prepares a run. {"warm_up": seconds} runs for this time, then times
one run and answers {"seconds": its time}. {"save": path} writes an .npz of the results of a run, as
float32. The time includes splitting the packed projection and joining the heads, as in a model.
"""

import json
import sys
import time

import numpy as np
import torch


def main():
    step = results = None
    for line in sys.stdin:
        request = json.loads(line)
        if "load" in request:
            torch.set_num_threads(request["threads"])
            step = prepare(**{key: request[key] for key in ("load", "heads", "dtype", "backward")})
            results = step()
            answer = {"version": torch.__version__}
        elif "warm_up" in request:
            begin = time.perf_counter()
            while time.perf_counter() < begin + request["warm_up"]:
                step()
            begin = time.perf_counter()
            results = step()
            answer = {"seconds": time.perf_counter() - begin}
        else:
            np.savez(request["save"], *(x.detach().float().numpy() for x in results))
            answer = {}
        print(json.dumps(answer), flush=True)


def prepare(load, heads, dtype, backward):
    """A function that runs attention once; it returns `[out]`, `[B, N, D]`, or `[out, d_qkv]`."""
    qkv = torch.from_numpy(np.load(load)).to(getattr(torch, dtype)).requires_grad_(backward)
    batch, tokens, width = qkv.shape
    gradient = torch.ones(batch, tokens, width // 3, dtype=qkv.dtype)

    def step():
        packed = qkv.view(batch, tokens, 3, heads, width // 3 // heads).permute(2, 0, 3, 1, 4)
        out = torch.nn.functional.scaled_dot_product_attention(*packed.unbind(0))
        out = out.transpose(1, 2).reshape(batch, tokens, width // 3)
        if backward:
            qkv.grad = None
            out.backward(gradient)
            return [out, qkv.grad]
        return [out]

    if backward:
        return step

    def inference():
        with torch.inference_mode():
            return step()

    return inference


if __name__ == "__main__":
    main()
