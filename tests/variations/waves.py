"""Arrays that anyone can fill alike, whatever the framework: each one a sine, its phase given by its name.

The recorded numbers in these tests were computed by PyTorch 2.13 and transformers 5.24 in float64 from such arrays.
"""

import math
import zlib

import numpy as np


def wave(name, shape):
    """sin(phase + 1.7 n), n counting the entries"""
    phase = zlib.crc32(name.encode()) % 1000
    return np.sin(phase + 1.7 * np.arange(math.prod(shape))).reshape(shape)


def filled(shapes):
    """One array for each name and shape; a norm's `weight` lies around 1"""
    def is_gain(name):
        return name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "norm3.weight", "LayerNorm.weight"))

    return {name: is_gain(name) + 0.5 * wave(name, shape) for name, shape in shapes.items()}


def projection(arrays, suffix=" probe"):
    """One number that depends on every entry of every array, by name"""
    return sum(float(np.sum(array * wave(name + suffix, array.shape))) for name, array in arrays.items())
