"""Reference implementations: the paper's pseudo-code and equations, line by line, in plain Python.

They share no code with the package and use lists, dicts and sets instead of arrays. Tests
compare the fast functions with them on small cases.
"""

import math
from fractions import Fraction


def waa(staleness, queue, cost, V, bound, candidates, drift="sum"):
    """Return the active set in order of joining, and S of every prefix (alg:device).

    `drift = "mean"` divides the drift by the number of workers.
    """
    active, chosen, s_min, scores = set(), [], math.inf, []  # Initialize
    v_sort = sorted(candidates, key=lambda i: (cost[i], i))  # ascending order of H_t^i
    for k in range(1, len(v_sort) + 1):  # for K = 1 to N
        active.add(v_sort[k - 1])  # A_t = A_t + V_sort[K]
        ahead = [0 if i in active else tau + 1 for i, tau in enumerate(staleness)]  # pre-update
        duration = max(cost[i] for i in active)  # eq:duration for this set
        total = sum(q * (tau - bound) for q, tau in zip(queue, ahead, strict=True))
        s = (total if drift == "sum" else Fraction(total) / len(queue)) + V * duration
        scores.append(s)
        if s < s_min:  # a strict minimum: the first one wins
            s_min, chosen = s, v_sort[:k]
    return chosen, scores


def best_single(staleness, queue, cost, V, bound, candidates):
    """Return the one worker that minimises eq:lya, ties to the lower id."""
    best, s_min = None, math.inf
    for k in sorted(candidates):
        ahead = [0 if i == k else tau + 1 for i, tau in enumerate(staleness)]
        s = sum(q * (tau - bound) for q, tau in zip(queue, ahead, strict=True)) + V * cost[k]
        if s < s_min:
            best, s_min = k, s
    return best


def links_within(links, exchange, budget, draw):
    """Return which links (dst, src, share) are made within the budgets, turn by turn.

    exchange[k] names the exchange of link k, draw[k] its random number.
    """
    first = {x: min(d for d, y in zip(draw, exchange, strict=True) if y == x) for x in exchange}
    turn = dict.fromkeys(exchange, 0)
    for receiver in {dst for dst, _, _ in links}:
        own = {x for (dst, _, _), x in zip(links, exchange, strict=True) if dst == receiver}
        for place, x in enumerate(sorted(own, key=first.get)):
            turn[x] = max(turn[x], place)
    used, made = [0.0] * len(budget), set()
    for x in sorted(turn, key=lambda x: (turn[x], first[x])):
        would = list(used)
        for (dst, src, share), y in zip(links, exchange, strict=True):
            if y == x:
                would[dst] += share
                would[src] += share
        if all(w <= b + 1e-9 or w == u for u, w, b in zip(used, would, budget, strict=True)):
            used = would
            made.add(x)
    return [x in made for x in exchange]


def ptca(active, in_range, priority, budget, cap):
    """Return the links (dst, src) in order of choice (alg:topology with b = 1).

    in_range[i] is C_t^i, priority[i, j] decides its order. Two conditions come on top of the
    pseudo-code: v_i is not a candidate of its own, and takes at most `cap` in-neighbours.
    """
    b = 1
    nodes = range(len(budget))
    neighbours = {i: [] for i in nodes}  # N_t^i = {}
    used = [0 for _ in nodes]  # B_t^i = 0
    b_tmp, chosen = 0, []
    ranked = {  # sort C_t^i in descending order of priority
        i: sorted((j for j in in_range[i] if j != i), key=lambda j: (-priority[i, j], j))
        for i in active
    }
    while True:
        for i in active:  # for each v_i in A_t
            if used[i] + b > budget[i]:  # no bandwidth left to pull with
                continue
            if len(neighbours[i]) >= cap:
                continue
            while len(ranked[i]) > 0:
                head = ranked[i][0]
                if used[head] + b > budget[head]:  # the best one has no bandwidth left
                    ranked[i] = ranked[i][1:]
                else:
                    chosen.append((i, head))  # c_t^{i, head} = 1
                    neighbours[i].append(head)
                    used[i] += b
                    used[head] += b
                    ranked[i] = ranked[i][1:]
                    break
        if b_tmp - sum(used) == 0:  # nothing was added in this pass
            break
        b_tmp = sum(used)
    return chosen


def emd(counts_i, counts_j):
    """Return eq:EMD of two label histograms; the shares of an empty data set are zero."""
    d_i, d_j = sum(counts_i) or 1, sum(counts_j) or 1
    return sum(abs(a / d_i - b / d_j) for a, b in zip(counts_i, counts_j, strict=True))


def p1(pairs, emds, distances):
    """Return eq:priority1 of each link as a dict; a term whose maximum is zero is zero."""
    emd_max = max((emds[p] for p in pairs), default=0)
    dist_max = max((distances[p] for p in pairs), default=0)
    out = {}
    for p in pairs:
        different = emds[p] / emd_max if emd_max > 0 else 0.0
        far = distances[p] / dist_max if dist_max > 0 else 0.0
        out[p] = different + (1 - far)
    return out


def p2(pulls, t, tau_i, tau_j):
    """Return eq:priority2."""
    return (1 - pulls / t) * (1 / (1 + abs(tau_i - tau_j)))


def remaining_compute(h_i, durations, t, tau):
    """Return eq:h_comp for durations[k] = H_k and a training that began with round t - tau."""
    spent = 0
    for k in range(t - tau, t):
        spent += durations[k]
    return max(h_i - spent, 0)


def duration(active, remaining, link_s):
    """Return eq:costtime and eq:duration; link_s is a dict {(i, j): seconds} of the pulls."""
    longest = 0
    for i in active:
        pulls = [s for (dst, _), s in link_s.items() if dst == i]
        longest = max(longest, remaining[i] + max(pulls, default=0))
    return longest


def exchange(links, link_s, nodes):
    """Return the exchange seconds of each node: its slowest blocking link, summed over stages.

    `links` is a list of dicts with dst, src, stage, background, pushed.
    """
    out = []
    for node in range(nodes):
        total = 0
        for stage in sorted({x["stage"] for x in links}):
            mine = [
                seconds
                for x, seconds in zip(links, link_s, strict=True)
                if x["stage"] == stage
                and not x["background"]
                and (x["src"] if x["pushed"] else x["dst"]) == node
            ]
            total += max(mine, default=0)
        out.append(total)
    return out


def testbed_round(active, links, link_s, remaining, synchronous):
    """When the last node of a testbed round has mixed, and when each active worker begins to train.

    Every node follows its own order: first its training, then stage by stage what it receives.
    """

    def has_mixed(node, stage):
        """When a node has mixed a stage; -1: when it has begun its order."""
        if stage < 0:
            return remaining[node] if node in active else 0.0
        ready = has_mixed(node, stage - 1)
        ends = [ready]
        for link, seconds in zip(links, link_s, strict=True):
            if link["dst"] == node and link["stage"] == stage and not link["background"]:
                exact = synchronous or stage > 0 or link["pushed"]
                begin = max(ready, has_mixed(link["src"], stage - 1)) if exact else ready
                ends.append(begin + seconds)
        return max(ends)

    last = max((link["stage"] for link in links), default=0)
    everybody = [has_mixed(node, last) for node in range(len(remaining))]
    return max(everybody), [everybody[i] for i in active]


def expected_exchange(n, link_s, rank):
    """Return the rank-th smallest link time into each node, the largest if fewer, 0 if none."""
    out = []
    for i in range(n):
        times = sorted(s for (dst, _), s in link_s.items() if dst == i)
        out.append(times[min(rank, len(times)) - 1] if times else 0.0)
    return out


def sigma(n, receivers, pairs, size):
    """Return the dense weights sigma_t^{i,j} of eq:aggregation; N_t^i contains v_i itself."""
    dense = [[0.0] * n for _ in range(n)]
    for i in receivers:
        neighbours = {i} | {src for dst, src in pairs if dst == i}
        total = sum(size[j] for j in neighbours)
        for j in neighbours:
            dense[i][j] = size[j] / total
    return dense


def metropolis(n, edges):
    """Return the dense Metropolis weights of an undirected graph, a set of pairs."""
    neighbours = {i: set() for i in range(n)}
    for i, j in edges:
        neighbours[i].add(j)
        neighbours[j].add(i)
    dense = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in neighbours[i]:
            dense[i][j] = 1 / (1 + max(len(neighbours[i]), len(neighbours[j])))
        dense[i][i] = 1 - sum(dense[i])
    return dense
