"""Codecs by name, for tests that take them in turns."""

from dystop.exchange.codecs import Codec, LinkParams, codec_of


def codec_for(name: str, fraction: float, tensors: tuple[int, ...], seed: int) -> Codec:
    """Return a codec for models with these tensors."""
    codec = codec_of(LinkParams(name, fraction))
    assert codec is not None
    return codec.of(tensors, seed)
