"""Without the compiled kernels everything works on the torch reference, with the same bits, and says so once."""

import subprocess
import sys

PROGRAM = """
import sys, warnings
if sys.argv[1] == "without":
    sys.modules["thinwire._native"] = None
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    import torch, thinwire
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(700, generator=generator) for _ in range(3)]
    codecs = ["qsgd | huffman", "topk(density=0.1) | rangefloat(bits=8)", "sign", "integers", "nuqsgd | elias"]
    for codec in [*codecs, "fft(chunk=64) | topk(density=0.1)"]:
        outcome = thinwire.simulate(codec, given)
        print(codec, outcome.sent, outcome.means[0].view(torch.int32).sum().item())
print(sum("compiled kernels are not available" in str(w.message) for w in caught), file=sys.stderr)
"""


def run(mode: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout, done.stderr.strip().splitlines()[-1]


def test_the_reference_takes_over_and_says_so_once() -> None:
    compiled, warned = run("with")
    assert warned == "0"
    reference, warned = run("without")
    assert warned == "1"
    assert reference == compiled
