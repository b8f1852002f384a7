"""What every test may use; the plugins say what for."""

pytest_plugins = ["pytester", "tests.debian", "tests.secret_grep", "tests.upstreams"]
