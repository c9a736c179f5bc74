from agentcredit.report.published import published, published_for


def test_every_number_is_whole_and_there_once():
    numbers = published()
    assert len(numbers) > 40
    for number in numbers:
        assert 0 < number.value <= 100
        assert number.paper
        assert number.note
        assert number.env in {"alfworld", "webshop", "scienceworld", "tau2", "appworld", "search"}
        assert number.n >= 0
        assert number.n_inferred <= (number.n > 0)
    keys = [(p.protocol, p.method, p.env, p.subset, p.model, p.metric) for p in numbers]
    assert len(set(keys)) == len(keys)


def test_inferred_denominators_fit_their_percentages():
    # A percentage of n episodes is k/n for some whole k, up to the rounding it was printed with.
    for number in published():
        if number.n_inferred and number.metric == "success" and number.subset != "all":
            successes = number.value / 100 * number.n
            assert abs(successes - round(successes)) <= 0.0005 * number.n + 1e-9, number


def test_known_figures():
    (cope,) = published_for("cope", "alfworld")
    assert (cope.text, cope.n) == ("95.5", 200)
    assert "n ≈ 200" in cope.provenance
    assert [p.text for p in published_for("ahead", "alfworld")] == ["+13.3"]
    assert "77.6±5.2" in [p.text for p in published_for("grpo", "alfworld")]
    assert published_for("proas", "nowhere") == ()
