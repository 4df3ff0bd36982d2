"""The long test files start first, or all in a random order."""

from tests import order


def test_order_of_files(tmp_path, monkeypatch):
    table = tmp_path / "durations.json"
    table.write_text('{"long.py": 90, "longer.py": 200}')
    monkeypatch.setattr(order, "TABLE", table)
    files = ["short.py", "long.py", "new.py", "longer.py"]
    assert order.in_order(files) == ["longer.py", "long.py", "short.py", "new.py"]
    orders = {tuple(order.in_order(files, seed)) for seed in "abcdefgh"}
    assert len(orders) > 1 and all(sorted(found) == sorted(files) for found in orders)
    assert order.in_order(files, "a") == order.in_order(files[::-1], "a")
