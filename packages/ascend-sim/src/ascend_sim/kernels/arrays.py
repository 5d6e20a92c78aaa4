"""Views of a kernel's tensor arguments as numpy arrays, and the one way a fast kernel declines a call.

A Triton kernel gets bare pointers and strides; a numpy view is the same memory only where the tensor's own layout
agrees with the strides passed. Every view made here checks that, so a fast kernel never works on a layout its contract
does not name. Only ``Tensor.numpy()`` is used on tensors: ``.item()``, ``.tolist()`` and ``.to()`` are what the
simulator's counters count.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class NotCovered(Exception):  # noqa: N818 - a decline, not an error
    """A fast kernel does not cover these arguments; raised before its first write, so the interpreter can run the call
    instead.
    """


def vector(tensor: Any) -> Array:
    """The whole of a contiguous tensor as one flat array on the same memory."""
    array: Array = tensor.numpy()
    if not array.flags.c_contiguous:
        raise NotCovered("a tensor that is addressed as a vector is not contiguous")
    return array.reshape(-1)


def matrix(tensor: Any, row_stride: int) -> Array:
    """A tensor [rows, columns] on the same memory; `row_stride` is the one passed to the kernel, in elements."""
    array: Array = tensor.numpy()
    # A tensor without columns (no drafts) has no second row to be found: numpy gives it other strides than torch.
    if array.ndim != 2 or (array.shape[0] > 1 and array.shape[1] and array.strides[0] != row_stride * array.itemsize):
        raise NotCovered(f"a tensor of shape {array.shape} does not have row stride {row_stride}")
    if array.shape[1] > 1 and array.strides[1] != array.itemsize:
        raise NotCovered("the rows of a tensor are not contiguous")
    return array


def first_column(tensor: Any, row_stride: int) -> Array:
    """The elements at multiples of `row_stride`: a tensor [rows] with that stride, or the first column of [rows,
    columns].
    """
    array: Array = tensor.numpy()
    if array.ndim == 2 and array.shape[1]:
        array = array[:, 0]
    if array.ndim != 1 or (array.size > 1 and array.strides[0] != row_stride * array.itemsize):
        raise NotCovered(f"a tensor of shape {tuple(tensor.shape)} does not have row stride {row_stride}")
    return array


def float_matrix(tensor: Any, row_stride: int) -> Array:
    """A tensor [rows, columns] of any floating type as float32: the same memory where it is float32, a copy otherwise
    (bfloat16).
    """
    if tensor.dim() != 2 or (tensor.shape[0] > 1 and tensor.stride(0) != row_stride):
        raise NotCovered(f"a tensor of shape {tuple(tensor.shape)} does not have row stride {row_stride}")
    if tensor.shape[1] > 1 and tensor.stride(1) != 1:
        raise NotCovered("the rows of a tensor are not contiguous")
    array: Array = tensor.float().numpy()
    return array


def request_rows(idx_mapping: Any, count: int) -> Array:
    """The first `count` entries of a request index mapping [num_reqs]; declines where one is negative (no request
    behind it).
    """
    rows = vector(idx_mapping)[:count]
    if rows.size and rows.min() < 0:
        raise NotCovered("the index mapping has a row without a request")
    return rows


def block_table(address: int, rows: int, row_stride: int) -> Array:
    """int32 block table [rows, row_stride] at a raw address, as the kernels get it; the caller's tensor keeps the
    memory alive.
    """
    if rows <= 0 or row_stride <= 0:
        return np.empty((max(rows, 0), max(row_stride, 0)), np.int32)
    size = rows * row_stride
    memory = memoryview((ctypes.c_int32 * size).from_address(address))
    return np.frombuffer(memory, np.int32).reshape(rows, row_stride)


def ragged_arange(starts: Array, lengths: Array) -> Array:
    """``concatenate([arange(s, s + n) for s, n in zip(starts, lengths)])`` without a loop, int64."""
    total = int(lengths.sum())
    offsets = starts - (np.cumsum(lengths, dtype=np.int64) - lengths)
    return np.repeat(offsets, lengths) + np.arange(total)


def contiguous_query(query_start_loc: Any, count: int) -> tuple[Array, Array]:
    """(offsets [count + 1], lengths [count]) of a query_start_loc; declines where it is not increasing."""
    offsets = vector(query_start_loc)[: count + 1]
    lengths = np.diff(offsets)
    if lengths.size and lengths.min() < 0:
        raise NotCovered("query_start_loc decreases")
    return offsets, lengths


def block_argmax(logits: Array, rows: Array, argmax: Array, maximum: Array, blocks: int, block_size: int) -> None:
    """Index and value of the largest logit of each vocabulary block, stored at `rows`; ties go to the lower index."""
    every = np.arange(len(rows))
    for block in range(blocks):
        part = logits[:, block * block_size : (block + 1) * block_size]
        best = part.argmax(axis=1)
        argmax[rows, block] = best + block * block_size
        maximum[rows, block] = part[every, best]
