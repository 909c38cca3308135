"""What a real SGLang needs to serve a small text model on a CPU. Data only.

SGLang's own requirements are CUDA's: over 4 GB of wheels, none of which a CPU uses. So SGLang is installed without its
requirements, the ones that a text model imports are listed here, and stubs stand in for the rest. No line of SGLang is
changed.
"""

from __future__ import annotations

VERSION = "0.5.17"
"""The version that the stand-in imitates by default and whose answers are recorded in the tests."""

TORCH = "torch==2.13.0"

REQUIREMENTS = (
    "transformers==5.12.1",
    "fastapi==0.136.3",
    "openai==2.6.1",
    "compressed-tensors==0.17.0",
    "apache-tvm-ffi==0.1.11",
    "aiohttp==3.14.5",
    "dill==0.4.1",
    "distro==1.9.0",
    "einops==0.8.2",
    "gguf==0.19.0",
    "httptools==0.9.0",
    "jsonschema==4.26.0",
    "loguru==0.7.3",
    "msgspec==0.23.0",
    "ninja==1.13.2",
    "numba==0.68.1",
    "nvidia-ml-py==13.615.71",
    "orjson==3.13.0",
    "packaging==26.4",
    "partial-json-parser==0.2.1.1.post7",
    "pillow==13.0.0",
    "prometheus-client==0.26.0",
    "psutil==7.2.2",
    "py-cpuinfo==9.0.0",
    "pybase64==1.5.1",
    "pydantic==2.14.4",
    "python-multipart==0.0.34",
    "pyyaml==6.0.4",
    "pyzmq==27.3.0",
    "requests==2.34.2",
    "scipy==1.17.1",
    "sentencepiece==0.2.3",
    "setproctitle==1.3.8",
    "sniffio==1.3.1",
    "tiktoken==0.14.0",
    "tqdm==4.70.1",
    "triton==3.9.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
    "watchfiles==1.3.0",
)
"""What SGLang imports on its way to a text model. The CPU builds of PyTorch come without Triton, which it imports."""

_CALL_RAISES = '''\
def __getattr__(name):
    """Any public name exists; calling it raises."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise RuntimeError(f"{__name__}.{name} was called, but {__name__} is a stub here")

    return missing
'''
_ANY_CLASS = '''\
class _Any(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name  # a member of an enumeration, say


def __getattr__(name):
    """Any public name exists, as an empty class: for annotations and isinstance."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Any(name, (), {})
'''
_STRUCTURAL_TAG = '''\
from pydantic import BaseModel


class StructuralTag(BaseModel):
    """A field's type in SGLang's OpenAI protocol."""


'''

STUBS: dict[str, str] = {
    # The CPU kernels are in no wheel: attention is PyTorch's (--attention-backend torch_native).
    "sgl_kernel/__init__.py": f'__version__ = "0.4.5"\n\n\n{_CALL_RAISES}',
    # Audio endpoints, notebooks.
    "soundfile.py": _CALL_RAISES,
    "IPython/__init__.py": "",
    "IPython/display.py": _CALL_RAISES,
    # Grammars: --grammar-backend none.
    "xgrammar/__init__.py": _STRUCTURAL_TAG + _ANY_CLASS,
    "xgrammar/structural_tag.py": f"from . import StructuralTag  # noqa: F401\n\n\n{_ANY_CLASS}",
    # Images.
    "torchvision/__init__.py": f'__version__ = "0.26.0"\n\n\n{_ANY_CLASS}',
    "torchvision/io/__init__.py": _ANY_CLASS,
    "torchvision/transforms/__init__.py": _ANY_CLASS,
    "torchvision/transforms/functional.py": _ANY_CLASS,
    "torchvision/transforms/v2/__init__.py": _ANY_CLASS,
    "torchvision/transforms/v2/functional.py": _ANY_CLASS,
}
"""Modules that SGLang imports while it starts and that a text model without a grammar never uses, by their file."""

ENVIRONMENT: dict[str, str] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # One thread: the machine's other cores belong to the client and the tests.
    "OMP_NUM_THREADS": "1",
    "SGLANG_CPU_OMP_THREADS_BIND": "1",
    # The model is a local folder.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

ARGUMENTS: dict[str, str | int | bool] = {
    "load-format": "dummy",
    "device": "cpu",
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "disable-cuda-graph": True,
    "max-total-tokens": 8192,
    "max-running-requests": 8,
    "skip-server-warmup": True,
    "enable-metrics": True,
    "served-model-name": "tiny",
}
"""Arguments of the server beside ``--model-path``; ``True`` is a bare flag."""
