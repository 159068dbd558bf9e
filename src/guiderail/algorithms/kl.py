"""Per-token Monte-Carlo estimators of KL(policy || reference) from sampled tokens.

Guarantees: exactly 0 for every token when both log-probs are the same numbers (step 0 from the frozen starting
weights). Does not define the reference: callers pass log-probs of a frozen copy of the STARTING weights.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


LOG_RATIO_BOUND = 20.0


def kl_estimate(logp: Tensor, logp_ref: Tensor, estimator: Estimator = "k3", clamp: float = 0.0) -> Tensor:
    """Estimate of KL(policy || reference) per sampled token, [n].

    With d = logp_ref - logp (tokens drawn from the policy)::

        k1 = -d                 unbiased, high variance, can be negative
        k2 = d^2 / 2            biased, low variance, >= 0
        k3 = exp(d) - d - 1     unbiased, low variance, >= 0

    Source: Schulman 2020, "Approximating KL Divergence"; k3 is DeepSeekMath (arXiv 2402.03300) equation 4. Estimators
    of the value, not of its gradient: differentiating k3 gives the gradient of KL only on fresh samples of the policy.
    In particular the gradient of k1 as a loss has expectation 0 on fresh samples (it constrains nothing there), while
    that of k2 is the gradient of KL(policy || reference) itself.

    clamp: 0 = none. Above 0, d is first clamped to +-20 and the estimate then to +-clamp (verl's "low_var_kl" is k3
    with clamp 10); a clamped token gives no gradient. The gradient flows through logp; logp_ref is a constant.
    """
    d = logp_ref.detach() - logp
    if clamp > 0:
        d = d.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    if estimator == "k1":
        value = -d
    elif estimator == "k2":
        value = d.square() / 2
    elif estimator == "k3":
        # expm1 keeps d^2/2 where exp(d) - 1 would lose it to rounding.
        value = torch.expm1(d) - d
    else:
        raise ValueError(f"KL estimator {estimator!r}: must be k1, k2 or k3")
    return value.clamp(-clamp, clamp) if clamp > 0 else value
