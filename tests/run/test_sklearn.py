"""``evenhand.Classifier`` among scikit-learn's: its estimator checks, ``Pipeline`` and ``GridSearchCV``.

No check is exempt. Two skip themselves where what they need is missing: check_array_api_input without
SCIPY_ARRAY_API, check_classifier_data_not_an_array without pandas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evenhand import Classifier

sklearn = pytest.importorskip("sklearn", reason="needs the extra: pip install 'evenhand[sklearn]'")

from sklearn.base import clone, is_classifier  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

QUICK: dict[str, Any] = {"run.threads": 1, "method.net.width": 16}


@parametrize_with_checks([Classifier(steps=30, lr=0.05, options=QUICK)])
def test_estimator(estimator: Classifier, check: Callable[[Classifier], None]) -> None:
    check(estimator)


def test_in_a_pipeline_and_a_grid() -> None:
    rng = np.random.default_rng(0)
    y = np.array(["rare"] * 8 + ["often"] * 32)
    X = rng.normal(size=(40, 3)) * [1, 100, 0.01] + 3 * (y == "rare")[:, None] * [1, 100, 0.01]
    pipe = make_pipeline(StandardScaler(), Classifier(lr=0.01, options=QUICK))
    grid = {"classifier__loss": ["ce", "la"], "classifier__steps": [1, 30]}
    search = GridSearchCV(pipe, grid, scoring="balanced_accuracy", cv=2).fit(X, y)
    assert search.best_params_["classifier__steps"] == 30
    assert search.best_score_ > 0.9
    assert set(search.predict(X)) == {"rare", "often"}
    assert is_classifier(pipe)
    assert clone(pipe[-1]).get_params() == pipe[-1].get_params()
