"""Theorems 1 and 2 and the convex problem: references, worked examples, counter-examples."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.activation import activate
from dystop.errors import ConfigError
from dystop.plan import Mix, mix_of
from dystop_paper.theory import bound, convex, lyapunov

EXACT = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def histories(draw: st.DrawFn) -> bound.History:
    n, rounds = draw(st.integers(1, 5)), draw(st.integers(0, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    share = rng.random(n) + 0.1
    mixes = []
    for _ in range(rounds):
        weights = rng.random((n, n)) * (rng.random((n, n)) < 0.6) + np.eye(n)
        active = np.flatnonzero(rng.random(n) < 0.7)
        active = active if len(active) else np.array([0])
        rows = weights[active] / weights[active].sum(axis=1, keepdims=True)
        at, source = np.nonzero(rows)
        mixes.append(mix_of(active[at], source, rows[at, source]))
    return bound.History(share / share.sum(), mixes, draw(st.booleans()))


def dense(rows: Mix, n: int) -> np.ndarray:
    """The mixing matrix of a round, the identity where nobody mixes."""
    matrix = np.eye(n)
    for k, i in enumerate(rows.receiver):
        matrix[i] = 0.0
        for at in range(rows.indptr[k], rows.indptr[k + 1]):
            matrix[i, rows.source[at]] += rows.weight[at]
    return matrix


def slow_recursion(history: bound.History, rho: float, noise: np.ndarray, start: float) -> list:
    gap = [start] * history.workers
    if history.warm_start:
        gap = [rho * g + d for g, d in zip(gap, noise, strict=True)]
    out = [sum(a * g for a, g in zip(history.share, gap, strict=True))]
    for rows in history.rounds:
        matrix, before = dense(rows, history.workers), list(gap)
        for i in rows.receiver:
            gap[i] = rho * sum(matrix[i, j] * before[j] for j in range(len(gap))) + noise[i]
        out.append(sum(a * g for a, g in zip(history.share, gap, strict=True)))
    return out


def slow_delta(history: bound.History, rho: float, noise: np.ndarray, literal: bool) -> list:
    """Delta_t of eq:decasydelta, term by term."""
    n = history.workers
    deltas = [np.zeros(n)]
    for rows in history.rounds:
        active = np.zeros(n, bool)
        active[rows.receiver] = True
        w = np.where(active, rho, 1.0) - (0.0 if literal else 1.0)
        z = np.where(active, dense(rows, n) @ noise, 0.0)
        deltas.append(w * sum(deltas) + z)
    return [float(history.share @ sum(deltas[: t + 1])) for t in range(len(deltas))]


@given(histories(), st.floats(0.01, 0.99), st.integers(0, 99))
@EXACT
def test_fast_and_slow_agree(history: bound.History, rho: float, seed: int) -> None:
    noise = np.random.default_rng(seed).random(history.workers)
    fast = bound.recursion(history, rho, noise, 2.0)
    np.testing.assert_allclose(fast, slow_recursion(history, rho, noise, 2.0))
    mended = bound.accumulated_noise(history, rho, noise)
    np.testing.assert_allclose(mended, slow_delta(history, rho, noise, literal=False))
    printed = bound.literal_noise(history, rho, noise)
    np.testing.assert_allclose(printed, slow_delta(history, rho, noise, literal=True))


@given(histories(), st.floats(0.01, 0.99), st.integers(0, 4))
@EXACT
def test_the_corollaries(history: bound.History, rho: float, which: int) -> None:
    counts, share = history.activations[-1], history.share
    tau = history.largest_staleness[-1]
    here = bound.transient(rho, counts, tau, share)
    assert bound.transient(rho, counts, tau + 1, share) >= here  # cor:tau
    assert bound.transient(rho, counts + 1, tau, share) <= here  # cor:psi, the transient
    low, high = np.full(len(share), 0.1), np.full(len(share), 0.1)
    high[which % len(share)] = 0.2  # one worker of more skewed data
    for reading in (bound.theorem, bound.recursion):  # cor:noniid
        small, large = (
            reading(history, rho, bound.delta(bound.Constants(0.1, 0.6, xi, low), 0.1), 1.0)
            for xi in (low, high)
        )
        assert (large >= small).all()


@given(histories(), st.floats(0.01, 0.99), st.integers(0, 99))
@EXACT
def test_what_is_left_of_the_theorem(history: bound.History, rho: float, seed: int) -> None:
    """Its first term holds, neighbours of neighbours and all; max delta / (1 - rho) adds noise."""
    noise = np.random.default_rng(seed).random(history.workers)
    left = bound.transient(rho, history.activations, history.largest_staleness, history.share)
    quiet = bound.recursion(history, rho, np.zeros(history.workers), 2.0)
    assert (quiet <= 2.0 * left * (1 + 1e-12)).all()
    noisy = bound.recursion(history, rho, noise, 2.0)
    assert (noisy <= (2.0 * left + noise.max() / (1.0 - rho)) * (1 + 1e-12)).all()


def test_staleness_and_activations_by_hand() -> None:
    rows = [mix_of(np.array([0]), np.array([0]), np.ones(1)) for _ in range(3)]
    history = bound.History(np.array([0.5, 0.5]), rows)
    assert history.activations.tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    assert history.largest_staleness.tolist() == [0, 0, 1, 2]


def test_worked_numbers() -> None:
    """Two workers, rho = 0.9, delta = (0.1, 0.3), F(w_0) - F* = 1, no warm start.

    Round 1: worker 0 mixes both half and half: 0.9 (1/2 + 1/2) + 0.1 = 1.0; worker 1 stays at 1.
    Round 2: worker 1 mixes 1/4 and 3/4: 0.9 (1/4 + 3/4) + 0.3 = 1.2. Means: 1, 1, 1.1.
    """
    first = mix_of(np.array([0, 0]), np.array([0, 1]), np.array([0.5, 0.5]))
    second = mix_of(np.array([1, 1]), np.array([0, 1]), np.array([0.25, 0.75]))
    history = bound.History(np.array([0.5, 0.5]), [first, second], warm_start=False)
    noise = np.array([0.1, 0.3])
    np.testing.assert_allclose(bound.recursion(history, 0.9, noise, 1.0), [1.0, 1.0, 1.1])
    # z_1 = 0.2 for worker 0, z_2 = 0.25 for worker 1.
    np.testing.assert_allclose(bound.accumulated_noise(history, 0.9, noise), [0, 0.1, 0.225])


def test_step_sizes_beyond_the_lemma_are_refused() -> None:
    constants = bound.Constants(0.1, 0.6, np.zeros(2), np.zeros(2))
    bound.check_step(constants, 0.138)
    with pytest.raises(
        ConfigError, match=r"training\.learning_rate = 0\.14: .*0\.1389.*learning_rate=0\.125"
    ):
        bound.check_step(constants, 0.14)


def test_the_noise_floor_is_where_the_recursion_ends() -> None:
    both = mix_of(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([0.7, 0.3, 0.2, 0.8]))
    history = bound.History(np.array([0.4, 0.6]), [both] * 2000)
    constants = bound.Constants(0.1, 0.6, np.array([0.3, 0.1]), np.array([0.02, 0.01]))
    noise, rho = bound.delta(constants, 0.1), bound.rho(0.1, 0.1)
    floor = bound.noise_floor(constants, 0.1)
    np.testing.assert_allclose(floor, noise / (1.0 - rho))
    assert floor.min() < bound.recursion(history, rho, noise, 5.0)[-1] < floor.max()
    faint = bound.Constants(1e-12, 0.5, np.array([0.3]), np.array([0.0]))
    assert bound.rho(1e-12, 1e-12) == 1.0  # rounded: 1 - rho is of no use
    assert bound.noise_floor(faint, 1e-12)[0] == pytest.approx(0.045e12)


def test_long_runs_overflow_in_silence_and_only_as_printed() -> None:
    alone = mix_of(np.array([0]), np.array([0]), np.ones(1))
    history, noise = bound.History(np.array([0.5, 0.5]), [alone] * 1100), np.array([0.1, 0.1])
    assert bound.literal(history, 0.99, noise, 1.0)[-1] == np.inf
    assert np.isfinite(bound.theorem(history, 0.99, noise, 1.0)).all()
    assert np.isfinite(bound.recursion(history, 0.99, noise, 1.0)).all()


# The errors in the proofs (paper/docs/theory.md) ------------------------------------------------


def test_without_the_identity_an_idle_worker_s_noise_doubles() -> None:
    """Slip 1: W_t of the theorem lacks the -E of its lemma."""
    alone = mix_of(np.array([0]), np.array([0]), np.ones(1))
    other = mix_of(np.array([1]), np.array([1]), np.ones(1))
    history = bound.History(np.array([1.0, 0.0]), [alone, *[other] * 10])
    noise = np.array([0.1, 0.0])
    np.testing.assert_allclose(bound.accumulated_noise(history, 0.9, noise)[1:], 0.1)
    np.testing.assert_allclose(bound.literal_noise(history, 0.9, noise)[-1], 0.1 * 2**10)


def test_the_lemma_needs_the_square_of_xi() -> None:
    """Slip 2: F = w^2/2, F_i = (w - 10)^2/2, one exact step of eta = 0.4 from the optimum of F."""
    eta, centre = 0.4, 10.0
    after = 0.5 * (eta * centre) ** 2  # F(0 - eta (0 - 10)) - F* = 8
    constants = bound.Constants(1.0, 1.0, np.array([centre]), np.zeros(1))
    bound.check_step(constants, eta)
    assert after == 8.0
    assert bound.delta_literal(constants, eta)[0] == pytest.approx(2.0)  # 8 > 2: does not hold
    assert bound.delta(constants, eta)[0] == pytest.approx(20.0)  # 8 <= 20: holds


def test_without_the_square_the_printed_bound_is_false() -> None:
    """Slip 2 in Theorem 1: F_i = (w -+ 100)^2/2, both begin at the optimum, one trains again."""
    eta, centre = 0.4, np.array([100.0, -100.0])
    models = eta * centre  # after the warm start
    models[0] -= eta * (models[0] - centre[0])
    gap = 0.5 * models.mean() ** 2
    assert gap == pytest.approx(72.0)
    constants = bound.Constants(1.0, 1.0, np.abs(centre), np.zeros(2))
    bound.check_step(constants, eta)
    alone = mix_of(np.array([0]), np.array([0]), np.ones(1))
    history = bound.History(np.array([0.5, 0.5]), [alone])
    printed = bound.literal(history, 0.6, bound.delta_literal(constants, eta), 0.0)[-1]
    assert printed == pytest.approx(10.0)  # 72 > 10: does not hold
    assert bound.recursion(history, 0.6, bound.delta(constants, eta), 0.0)[-1] > gap


def test_theta_max_is_positive_and_of_active_workers() -> None:
    """Slip 3: the proof of lem:Qasy says theta_max < 0, where the power is no real number."""
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.float64(-0.9) ** (-2 / 3))
    theta = 0.9  # what the argument uses: 0 < theta < 1
    assert theta ** (-2 / 3) > 1.0
    # As defined it is the largest of all workers', and that of an idle one is x + y = 1 + 0.
    assert bound.transient(1.0, np.array([500, 0]), 3, np.array([0.5, 0.5])) == 1.0


def chain(n: int) -> bound.History:
    """Every round, worker i averages itself with worker i + 1; the last one only has itself."""
    i = np.arange(n - 1)
    dst = np.concatenate([i, i, [n - 1]])
    src = np.concatenate([i, i + 1, [n - 1]])
    rows = mix_of(dst, src, np.concatenate([np.full(2 * (n - 1), 0.5), [1.0]]))
    return bound.History(np.full(n, 1 / n), [rows] * 3000, warm_start=False)


def test_neighbours_of_neighbours_count() -> None:
    """Slip 4: the lemma multiplies Q(omega^j) by a diagonal, so worker i's bound never sees Q^j.

    Twenty workers of equal data in a chain, F_i = w^2/2 and F_20 = (w - 1)^2/2, exact gradients,
    eta = 0.01. The gap of the weighted model is eight times what even the corrected theorem allows;
    Lemma 1 followed through the run covers it.
    """
    n, eta = 20, 0.01
    history, target = chain(n), np.append(np.zeros(n - 1), 1.0)
    centre = target.mean()
    models = np.zeros(n)
    for rows in history.rounds:
        mixed = dense(rows, n) @ models
        models = mixed - eta * (mixed - target)
    gap = 0.5 * (models.mean() - centre) ** 2
    constants = bound.Constants(1.0, 1.0, np.abs(target - centre), np.zeros(n))
    noise, start = bound.delta(constants, eta), 0.5 * centre**2
    theorem = bound.theorem(history, bound.rho(1.0, eta), noise, start)[-1]
    followed = bound.recursion(history, bound.rho(1.0, eta), noise, start)[-1]
    assert gap > 7 * theorem
    assert gap < followed


def test_the_sum_of_noise_may_fall() -> None:
    """Slip 5: lem:Qasy puts the sum of Delta up to T - 1 for the one up to omega, which was larger.

    One row, theta = 0.5 in every round, Q_0 = 0: noise of 1 in round 1, none after; in round 3 a
    neighbour is as it was after round 1.
    """
    x, y, z = 0.05, 0.45, [1.0, 0.0, 0.0]
    gaps = [0.0]
    for t, omega in ((1, 0), (2, 1), (3, 1)):
        gaps.append(x * gaps[t - 1] + y * gaps[omega] + z[t - 1])
    sums = [0.0]
    for noise in z:
        sums.append(sums[-1] + (x + y - 1.0) * sums[-1] + noise)
    assert gaps[:3] == pytest.approx(sums[:3])
    assert gaps[3] == pytest.approx(0.475)
    assert sums[3] == pytest.approx(0.25)  # 0.475 > 0.25: does not hold


def test_the_own_model_is_counted_twice() -> None:
    """Slip 6: x = rho sigma_ii and y_ij over N_i, which contains i, so theta = rho (1 + sigma_ii).

    Two workers average both models in each of ten rounds. By lem:basegap the gap shrinks by rho in
    every round; lem:Qasy with these x and y lets it grow.
    """
    rho, rounds = 0.9, 10
    both = mix_of(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.full(4, 0.5))
    history = bound.History(np.array([0.5, 0.5]), [both] * rounds, warm_start=False)
    sigma = dense(both, 2)
    theta = rho * np.diag(sigma) + rho * sigma.sum(axis=1)
    assert theta == pytest.approx(1.35)  # lem:Qasy needs at most 1
    gap = bound.recursion(history, rho, np.zeros(2), 1.0)[-1]
    assert gap == pytest.approx(rho**rounds)
    assert bound.transient(theta.max(), history.activations, 0, history.share)[-1] > 20
    once = theta - rho * np.diag(sigma)
    assert once == pytest.approx(rho)
    assert bound.transient(once.max(), history.activations, 0, history.share)[-1] == (
        pytest.approx(gap)
    )
    # Alone, a worker has theta = 2 rho: above 1 for every step size that lem:basegap allows.
    constants = bound.Constants(1.0, 1.0, np.zeros(1), np.zeros(1))
    for eta in (0.01, 0.3, 0.499):
        bound.check_step(constants, eta)
        assert 2.0 * bound.rho(1.0, eta) > 1.0


def test_more_activations_can_raise_the_whole_bound() -> None:
    """Corollary 2 is about the transient: near the optimum every activation only adds noise."""
    alone = mix_of(np.array([0]), np.array([0]), np.ones(1))
    once, twice = (bound.History(np.ones(1), [alone] * k) for k in (1, 2))
    noise = np.array([0.1])
    assert bound.theorem(twice, 0.9, noise, 0.01)[-1] > bound.theorem(once, 0.9, noise, 0.01)[-1]


# Theorem 2 ---------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(0, 20)), min_size=1, max_size=8),
    st.floats(0, 15),
)
@EXACT
def test_drift_never_exceeds_its_bound(pairs: list[tuple[float, int]], limit: float) -> None:
    queue = np.array([q for q, _ in pairs])
    tau = np.array([t for _, t in pairs])
    after = np.maximum(queue + tau - limit, 0.0)  # eq:queue
    assert lyapunov.drift(queue, after) <= lyapunov.drift_bound(queue, tau, limit) + 1e-9


def test_gamma_is_not_bounded_by_the_bound() -> None:
    """The paper's limit N tau_bound^2 assumes that no staleness ever exceeds the bound."""
    assert lyapunov.gamma(np.array([2, 2]), 2.0) == lyapunov.gamma_literal(2, 2.0) == 8.0
    assert lyapunov.gamma(np.array([4, 0]), 2.0) == 12.0
    assert lyapunov.gap(10, 12.0, 10.0) == 12.0
    assert lyapunov.gap(10, 12.0, 0.0) == np.inf
    with pytest.raises(ConfigError, match=r"V = -1: .*V >= 0"):
        lyapunov.gap(10, 12.0, -1.0)


def test_a_round_may_well_be_longer_than_the_best_one() -> None:
    """The proof puts H*_t for H_t and leaves the queues as they were: that needs H_t <= H*_t."""
    cost_s, queue, tau = np.array([1.0, 2, 3, 4]), np.array([0.0, 0, 2, 6]), np.array([0, 1, 3, 5])
    active = activate(np.arange(4), cost_s, queue, tau, V=10.0)
    assert cost_s[active].max() == 4.0  # one that wakes the first worker only lasts 1 s


# The convex problem ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem() -> convex.Regression:
    rng = np.random.default_rng(3)
    x = convex.unit_rows(rng.normal(size=(60, 1, 2, 3)))
    shards = (np.arange(25), np.arange(25, 40), np.arange(40, 60))
    return convex.Regression(x, rng.integers(0, 4, 60), shards, 4, 0.05)


def test_the_gradient_is_the_gradient(problem: convex.Regression) -> None:
    w = np.random.default_rng(0).normal(size=24)
    step = 1e-6 * np.eye(24)
    slope = [(convex.value(problem, w + d) - convex.value(problem, w - d)) / 2e-6 for d in step]
    np.testing.assert_allclose(convex.gradient(problem, w), slope, atol=1e-8)


def test_the_minimum_is_certified(problem: convex.Regression) -> None:
    best, lowest = convex.minimum(problem)
    assert convex.certificate(problem, best) <= 1e-10
    rng = np.random.default_rng(1)
    for _ in range(20):
        w = best + rng.normal(size=24)
        above = convex.value(problem, w) - lowest
        assert above >= problem.mu / 2 * np.sum((w - best) ** 2) - 1e-9
        assert above <= problem.smoothness / 2 * np.sum((w - best) ** 2) + 1e-9


def test_a_loss_too_flat_to_minimise_is_named(problem: convex.Regression) -> None:
    flat = replace(problem, l2=1e-18)
    with pytest.raises(ConfigError, match=r"training\.l2 = 1e-18: .*1e-10.*training\.l2=0\.1"):
        convex.minimum(flat)


def test_divergence_and_noise_by_plain_loops(problem: convex.Regression) -> None:
    w = np.random.default_rng(2).normal(size=24)
    whole = convex.gradient(problem, w)
    gaps = [np.linalg.norm(whole - convex.gradient(problem.part(i), w)) for i in range(3)]
    np.testing.assert_allclose(convex.divergence(problem, w), gaps)
    own = problem.part(1)
    best, _ = convex.minimum(own)
    singles = [
        convex.gradient(convex.Regression(own.x[[k]], own.y[[k]], (), 4, own.l2), best)
        for k in range(len(own.y))
    ]
    alone = np.mean([g @ g for g in singles])
    np.testing.assert_allclose(convex.local_noise(problem, 1)[1], alone, rtol=1e-6)
    pairs = [
        np.sum(((singles[a] + singles[b]) / 2) ** 2) for a in range(15) for b in range(15) if a != b
    ]
    np.testing.assert_allclose(convex.local_noise(problem, 2)[1], np.mean(pairs), rtol=1e-5)
    assert convex.local_noise(problem, 99)[1] == 0.0
