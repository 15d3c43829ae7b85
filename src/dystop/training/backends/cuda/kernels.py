"""The Triton kernels for a stack of small networks, in which every worker has its own weights.

A grouped convolution of a library launches one kernel for each worker, or moves ten times the data
that it needs. Here a convolution is an implicit matrix product: output positions times filter taps,
with the image read in place. Each program serves one worker. It returns at once if that worker has
no samples in this step, so idle rows of a stack cost nothing. Sums have a fixed order: the same
inputs give the same bits, whatever the other rows hold.

Stacks lie as [worker, sample, channel, y, x]. Weights are read from the flat models [worker, W].
"""

import triton
import triton.language as tl


@triton.jit
def _mix(x):
    """Return the output function of SplitMix64, as in `dystop.rng`."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _fold_in(state, word):
    """Fold one more part into an address, as `dystop.rng.fold_in`."""
    step = (word.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15
    return _mix(state + step)


@triton.jit(do_not_specialize=["epoch"])
def sort_keys(
    workers, versions, sizes, start, epoch, keys, width, BLOCK: tl.constexpr
):  # fmt: skip
    """Draw a random key for each position of each worker's shard; sorted as int64, ascending."""
    row = tl.program_id(0)
    worker, version = tl.load(workers + row), tl.load(versions + row)
    state = tl.load(start).to(tl.uint64, bitcast=True)
    state = _fold_in(_fold_in(state, worker), version)
    state = _fold_in(state, epoch.to(tl.int64))
    position = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    key = _fold_in(state, position) ^ (1 << 63)  # unsigned order
    key = tl.where(position < tl.load(sizes + worker), key.to(tl.int64, bitcast=True), 2**63 - 1)
    tl.store(keys + row.to(tl.int64) * width + position, key, position < width)


@triton.jit(do_not_specialize=["epoch"])
def fill_table(
    order, workers, sizes, starts, samples, table,
    epoch, columns, height, width, BATCH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill table[step, row, slot] with the samples of one epoch of a worker."""
    row = tl.program_id(0)
    worker = tl.load(workers + row)
    size = tl.load(sizes + worker)
    if size == 0:
        return
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    span = (size + BATCH - 1) // BATCH * BATCH
    position = j - epoch * span
    mine = (position >= 0) & (position < span) & (j < columns)
    # The first sample of a short mini-batch fills it up.
    position = tl.where(position < size, position, position - j % BATCH)
    at = tl.load(order + row.to(tl.int64) * width + position, mine, 0)
    sample = tl.load(samples + tl.load(starts + worker) + at, mine, 0)
    tl.store(table + (j // BATCH * height + row) * BATCH + j % BATCH, sample, mine)


@triton.jit(do_not_specialize=["height", "batch"])
def gather_samples(
    data, labels, scale, shift, table, counts, step, x, y, count,
    height, batch, SIZE: tl.constexpr, PLANE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Gather normalised inputs, labels and sample count of the current step, a sample each."""
    row, slot = tl.program_id(0), tl.program_id(1)
    now = tl.load(step)
    many = tl.load(counts + now * height + row)
    if slot == 0:
        tl.store(count + row, many)
    if many == 0:
        return
    at = row * batch + slot
    sample = tl.load(table + (now * height + row) * batch + slot).to(tl.int64)
    tl.store(y + at, tl.load(labels + sample).to(tl.int32))
    for first in range(0, SIZE, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < SIZE
        raw = tl.load(data + sample * SIZE + i, mask=inside, other=0).to(tl.float32)
        a = tl.load(scale + i // PLANE, mask=inside, other=0.0)
        b = tl.load(shift + i // PLANE, mask=inside, other=0.0)
        tl.store(x + at.to(tl.int64) * SIZE + i, raw * a + b, mask=inside)


@triton.jit
def _multiply(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a b, with operands rounded to PRECISION: ieee, tf32x3, tf32 or bf16."""
    if PRECISION == "bf16":
        acc = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def convolve(
    x, w, bias, y, count, width, stride, batch,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, K: tl.constexpr,
    BACKWARD: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute y[o] = bias[o] + sum over taps of w[o, tap] x[tap], stride 1, no padding.

    With BACKWARD, compute the gradient at the input: the same sum over the padded gradient at the
    output, with the filter rotated; then C counts the filters and O the input channels. `stride`
    leads from one worker's inputs to the next one's; it is 0 if all workers see the same inputs.
    The number of samples is not a constant, so training and evaluation share one kernel.
    """
    row = tl.program_id(1)
    if tl.load(count + row) == 0:
        return
    x += row.to(tl.int64) * stride
    y += row.to(tl.int64) * batch * (O * OH * OW)
    w += row.to(tl.int64) * width
    p = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = p < batch * (OH * OW)
    n, pixel = p // (OH * OW), p % (OH * OW)
    base = n * (C * H * W) + (pixel // OW) * W + pixel % OW
    o = tl.arange(0, BLOCK_O)
    acc = tl.zeros((BLOCK_O, BLOCK_P), tl.float32)
    for first in range(0, C * K * K, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        tap = k % (K * K)
        offset = (k // (K * K)) * (H * W) + (tap // K) * W + tap % K
        known = k < C * K * K
        if BACKWARD:
            at = ((k // (K * K)) * (O * K * K) + K * K - 1 - tap)[None, :] + o[:, None] * (K * K)
        else:
            at = k[None, :] + o[:, None] * (C * K * K)
        a = tl.load(w + at, known[None, :] & (o < O)[:, None], 0.0)
        # Positions last: neighbouring threads read neighbouring pixels.
        b = tl.load(x + offset[:, None] + base[None, :], known[:, None] & inside[None, :], 0.0)
        acc = _multiply(a, b, acc, PRECISION)
    if BIAS:
        acc += tl.load(bias + row.to(tl.int64) * width + o, o < O, 0.0)[:, None]
    to = (n * (O * OH * OW) + pixel)[None, :] + o[:, None] * (OH * OW)
    tl.store(y + to, acc, inside[None, :] & (o < O)[:, None])


@triton.jit
def filter_gradient(
    x, g, part, count, rows,
    BATCH: tl.constexpr, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    O: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, PAD: tl.constexpr,
    SPLIT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of filters and biases, part[split, row, o, tap].

    The last column is the gradient of the bias. The gradient at the output, g, has a margin of PAD
    zeros, which `convolve` needs for the backward pass. SPLIT programs share the positions; their
    sums are added in order afterwards.
    """
    split, row = tl.program_id(1), tl.program_id(2)
    if tl.load(count + row) == 0:
        return
    GH: tl.constexpr = OH + 2 * PAD
    GW: tl.constexpr = OW + 2 * PAD
    TAPS: tl.constexpr = C * K * K
    PER: tl.constexpr = (BATCH * OH * OW + SPLIT - 1) // SPLIT
    x += row.to(tl.int64) * (BATCH * C * H * W)
    g += row.to(tl.int64) * (BATCH * O * GH * GW) + PAD * GW + PAD
    k = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    tap = k % (K * K)
    offset = (k // (K * K)) * (H * W) + (tap // K) * W + tap % K
    o = tl.arange(0, BLOCK_O)
    acc = tl.zeros((BLOCK_O, BLOCK_K), tl.float32)
    for first in range(0, PER, BLOCK_P):
        q = first + tl.arange(0, BLOCK_P)
        p = split * PER + q
        inside = (q < PER) & (p < BATCH * OH * OW)
        n, pixel = p // (OH * OW), p % (OH * OW)
        here = n * (O * GH * GW) + (pixel // OW) * GW + pixel % OW
        a = tl.load(
            g + here[None, :] + o[:, None] * (GH * GW), inside[None, :] & (o < O)[:, None], 0.0
        )
        there = n * (C * H * W) + (pixel // OW) * W + pixel % OW
        seen = (k < TAPS)[:, None] & inside[None, :]
        b = tl.load(x + offset[:, None] + there[None, :], seen, 0.0)
        b = tl.where((k == TAPS)[:, None], 1.0, b)
        acc = _multiply(a, tl.trans(b), acc, PRECISION)
    to = ((split * rows + row).to(tl.int64) * O + o)[:, None] * (TAPS + 1) + k[None, :]
    tl.store(part + to, acc, (o < O)[:, None] & (k <= TAPS)[None, :])


@triton.jit
def relu_pool(
    x, y, arg, count, size,
    H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POOL: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the maximum over POOL x POOL windows, then ReLU.

    `arg` is the position of the maximum in its window, or POOL^2 if the ReLU sets it to zero.
    `size` counts the outputs of one worker. NaN is the maximum, as in torch.
    """
    row = tl.program_id(1)
    if tl.load(count + row) == 0:
        return
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    plane, py, px = i // (PH * PW), (i // PW) % PH, i % PW
    x += row.to(tl.int64) * (size // (PH * PW) * (H * W))
    base = plane * (H * W) + py * POOL * W + px * POOL
    best = tl.load(x + base, inside, 0.0)
    position = tl.zeros((BLOCK,), tl.int32)
    for j in tl.static_range(1, POOL * POOL):
        v = tl.load(x + base + (j // POOL) * W + j % POOL, inside, 0.0)
        better = (v > best) | (v != v)
        best = tl.where(better, v, best)
        position = tl.where(better, j, position)
    if RELU:
        position = tl.where(best <= 0.0, POOL * POOL, position)
        best = tl.where(best <= 0.0, 0.0, best)
    at = row.to(tl.int64) * size + i
    tl.store(y + at, best, inside)
    tl.store(arg + at, position.to(tl.uint8), inside)


@triton.jit
def relu_pool_backward(
    g, arg, out, count,
    PLANES: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    POOL: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Pass the gradient to the positions of the maxima, in an array with a margin of PAD zeros."""
    row = tl.program_id(1)
    if tl.load(count + row) == 0:
        return
    GH: tl.constexpr = H + 2 * PAD
    GW: tl.constexpr = W + 2 * PAD
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < PLANES * GH * GW
    plane, oy, ox = i // (GH * GW), (i // GW) % GH - PAD, i % GW - PAD
    py, px = oy // POOL, ox // POOL
    real = inside & (oy >= 0) & (ox >= 0) & (py < PH) & (px < PW)
    source = row.to(tl.int64) * (PLANES * PH * PW) + plane * (PH * PW) + py * PW + px
    position = tl.load(arg + source, real, 255).to(tl.int32)
    value = tl.load(g + source, real, 0.0)
    mine = (oy - py * POOL) * POOL + ox - px * POOL
    to = row.to(tl.int64) * (PLANES * GH * GW) + i
    tl.store(out + to, tl.where(real & (position == mine), value, 0.0), inside)


@triton.jit
def cross_entropy(
    logits, y, count, total, gradient,
    BATCH: tl.constexpr, CLASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add each row's summed loss to its total; compute the gradient of its mean loss."""
    row = tl.program_id(0)
    many = tl.load(count + row)
    i, c = tl.arange(0, BLOCK_B), tl.arange(0, BLOCK_C)
    at = row * (BATCH * CLASSES) + i[:, None] * CLASSES + c[None, :]
    inside = (i < BATCH)[:, None] & (c < CLASSES)[None, :]
    used = i < many
    z = tl.load(logits + at, inside & used[:, None], float("-inf"))
    z = tl.where(used[:, None], z, tl.where(c == 0, 0.0, float("-inf"))[None, :])
    right = tl.load(y + row * BATCH + i, used, -1)
    top = tl.max(z, 1)
    top = tl.where(tl.sum((z != z).to(tl.int32), 1) > 0, float("nan"), top)
    e = tl.exp(z - top[:, None])
    sums = tl.sum(e, 1)
    hit = c[None, :] == right[:, None]
    picked = tl.sum(tl.where(hit, z, 0.0), 1)
    loss = tl.where(used, tl.log(sums) + top - picked, 0.0)
    slope = (e / sums[:, None] - hit.to(tl.float32)) / many
    tl.store(gradient + at, tl.where(used[:, None], slope, 0.0), inside)
    if many > 0:
        before = tl.load(total + row)
        tl.store(total + row, before + tl.sum(loss, 0).to(tl.float64))


@triton.jit
def evaluate(
    logits, y, count, correct, total, batch,
    CLASSES: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Add each row's correct answers and losses; all rows see the same samples."""
    row = tl.program_id(0)
    samples = tl.load(count)
    logits += row.to(tl.int64) * batch * CLASSES
    c = tl.arange(0, BLOCK_C)
    known = c < CLASSES
    hits, losses = tl.load(correct + row), tl.load(total + row)
    for first in range(0, batch, BLOCK_B):
        i = first + tl.arange(0, BLOCK_B)
        used = i < samples
        at = i[:, None] * CLASSES + c[None, :]
        z = tl.load(logits + at, used[:, None] & known[None, :], float("-inf"))
        z = tl.where(used[:, None], z, 0.0)
        label = tl.load(y + i, used, 0)
        has_nan = tl.sum((z != z).to(tl.int32), 1) > 0
        top = tl.max(z, 1)
        # The first of the highest scores, or the first NaN, as in torch.
        wins = tl.where(has_nan[:, None], z != z, z == top[:, None])
        choice = tl.min(tl.where(wins, c[None, :], BLOCK_C), 1)
        hits += tl.sum((used & (choice == label)).to(tl.int32), 0)
        sums = tl.sum(tl.exp(z - top[:, None]), 1)
        picked = tl.sum(tl.where(c[None, :] == label[:, None], z, 0.0), 1)
        loss = tl.where(has_nan, float("nan"), tl.log(sums) + top - picked)
        losses += tl.sum(tl.where(used, loss, 0.0).to(tl.float64), 0)
    tl.store(correct + row, hits)
    tl.store(total + row, losses)


@triton.jit
def update(
    models, part, rate, count, width, stride_split, stride_row, stride_out,
    SIZE: tl.constexpr, COLS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Subtract rate * (sum of the parts of the gradient) from one tensor of every active row."""
    row = tl.program_id(1)
    if tl.load(count + row) == 0:
        return
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < SIZE
    at = row.to(tl.int64) * stride_row + (i // COLS) * stride_out + i % COLS
    g = tl.load(part + at, inside, 0.0)
    for s in range(1, SPLIT):
        g += tl.load(part + s * stride_split + at, inside, 0.0)
    to = models + row.to(tl.int64) * width + i
    tl.store(to, tl.load(to, inside, 0.0) - tl.load(rate + row) * g, inside)
