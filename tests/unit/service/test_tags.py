"""Tags: the convention, and what cannot be one."""

from __future__ import annotations

import pytest

from framepool.errors import ConfigurationError
from framepool.service import service_tag
from framepool.service.tags import tag_filter


@pytest.mark.clause("S-7-01", "S-7-02")
def test_tag_has_the_recommended_form_and_is_the_same_each_time() -> None:
    assert service_tag("recorder") == "service:recorder"
    assert service_tag("limiter", "20000") == service_tag("limiter", "20000") == "service:limiter:20000"


@pytest.mark.parametrize("part", ["", "a:b", "a b", "a\n", "é", "x" * 300])
def test_name_that_cannot_stand_in_a_tag_is_refused(part: str) -> None:
    with pytest.raises(ConfigurationError, match="tag"):
        service_tag(part)
    if part:
        with pytest.raises(ConfigurationError, match="tag"):
            service_tag("name", part)


def test_filter_compares_the_whole_tag_with_its_length() -> None:
    only = tag_filter("service:x")
    assert (only.schema_id, only.template_id, only.after_block, only.offset) == (905, 1, True, 0)
    assert only.pattern == b"\x09\0\0\0service:x"
    assert len(tag_filter(service_tag("x" * 248)).pattern) == 260
