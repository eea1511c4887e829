import pytest
from pydantic import ValidationError

from reasond_server.config.operation import StoreSettings


@pytest.mark.parametrize("url", ["", "memory:", "sqlite:///a.db", "sqlite:////var/a.db", "postgresql://u:p@h/d"])
def test_addresses_of_the_known_forms_are_taken(url: str) -> None:
    assert StoreSettings(url=url).url == url


@pytest.mark.parametrize("url", ["memory", "sqlite:///", "sqlite://a", "mysql://u:s3cret@h/d", "postgresql:/x", " "])
def test_other_addresses_are_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValidationError, match='must be "memory:"') as caught:
        StoreSettings(url=url)
    assert "s3cret" not in str(caught.value)


def test_the_retention_of_a_tenant_is_bounded_and_cannot_be_changed_later() -> None:
    settings = StoreSettings(tenant_retention_s={"acme": 60.0})
    assert settings.tenant_retention_s["acme"] == 60
    with pytest.raises(TypeError):
        settings.tenant_retention_s["acme"] = 1.0  # type: ignore[index] # the mapping must refuse it
    for seconds in (0.5, 1e12, float("nan")):
        with pytest.raises(ValidationError):
            StoreSettings(tenant_retention_s={"acme": seconds})
