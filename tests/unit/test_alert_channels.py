"""The channels of alerts: which addresses are reached, what Slack and a mailbox are sent, how a webhook is signed."""

import base64
import email
import ipaddress
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email import policy
from email.message import EmailMessage
from functools import partial
from typing import Any

import anyio
import pytest
from receivers import receiver

from ringleader.spec.alerts import AlertChannel
from ringleader.wire.alerts import AlertBody, AlertJob, signature
from ringleader_api.alerting.addresses import Allowed, is_inside
from ringleader_api.alerting.channels import Channels, mail_to, slack_text
from ringleader_api.alerting.mail import MailServer, NotTaken
from ringleader_api.alerting.outbox import host_of
from ringleader_api.alerting.posting import NotDelivered, Poster
from ringleader_api.store.alerts import AlertRow

INSIDE = [
    *(
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
    ),
    *(
        "100.100.100.200",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
        "168.63.129.16",
        "192.0.2.1",
        "::1",
        "::",
    ),
    *(
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
    ),
    *("2002:7f00:1::1", "2001:0:0:0:0:0:80ff:fffe", "::ffff:169.254.169.254"),
    *("64:ff9b:1::7f00:1", "64:ff9b:1:7f00:0:100::", "::127.0.0.1", "::10.0.0.1", "::8.8.8.8"),
    # Of these the ipaddress of some Python releases says that they are global.
    *(
        "192.0.0.192",
        "192.0.0.8",
        "192.88.99.1",
        "fec0::1",
        "::ffff:0:127.0.0.1",
        "3fff::1",
        "5f00::1",
        "100:0:0:1::1",
    ),
]
OUTSIDE = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "::ffff:8.8.8.8"]
BODY = AlertBody(
    id="alert_1",
    at=datetime(2026, 11, 20, 12, tzinfo=UTC),
    project="vision",
    rule="broken",
    kind="state",
    message="<!channel> a&b\nis failed",
    job=AlertJob(id="job_1", name="<b>", url="https://rl.example.org/jobs/job_1"),
    data={"state": "failed", "reason": {"code": "x"}},
)


def test_addresses_inside_are_known_however_they_are_written() -> None:
    assert [one for one in INSIDE if not is_inside(ipaddress.ip_address(one))] == []
    assert [one for one in OUTSIDE if is_inside(ipaddress.ip_address(one))] == []


def test_an_operator_allows_hosts_by_name_and_networks() -> None:
    allowed = Allowed.of("Hooks.internal, 10.1.0.0/16 ,fd00::/8")
    inside = ipaddress.ip_address("10.1.2.3")
    assert allowed.takes("x.example.org", inside)
    assert allowed.takes("x.example.org", ipaddress.ip_address("::ffff:10.1.2.3"))
    assert not allowed.takes("x.example.org", ipaddress.ip_address("10.2.0.1"))
    assert allowed.takes("hooks.INTERNAL", ipaddress.ip_address("192.168.0.1"))
    with pytest.raises(ValueError, match="neither the name of a host nor a network"):
        Allowed.of("10.1.0.0/99")


def post(address: str, *found: str, allowed: str = "", deadline_s: float = 10.0) -> list[tuple[str, int]]:
    """Post to an address whose name leads there; returns what was looked up."""
    asked: list[tuple[str, int]] = []

    def look_up(host: str, port: int, within_s: float) -> Sequence[str]:
        asked.append((host, port))
        return found

    poster = Poster(Allowed.of(allowed), look_up=look_up, deadline_s=deadline_s)
    anyio.run(poster.post, address, {"X-Test": "1"}, b"{}")
    return asked


def refused(address: str, *found: str, **more: Any) -> NotDelivered:
    with pytest.raises(NotDelivered) as caught:
        post(address, *found, **more)
    return caught.value


def test_the_connection_goes_to_the_address_that_was_checked_and_the_name_is_asked_for_once() -> None:
    with receiver() as hook:
        asked = post(f"http://hooks.test:{hook.port}/in?a=1", "127.0.0.1", allowed="127.0.0.0/8")
    (posted,) = hook.posted
    assert (posted.path, posted.headers["host"], posted.headers["x-test"]) == (
        "/in?a=1",
        f"hooks.test:{hook.port}",
        "1",
    )
    assert asked == [("hooks.test", hook.port)]


def test_a_name_of_which_one_address_is_inside_is_refused_for_good_and_does_not_say_which() -> None:
    error = refused("https://hooks.example.org/", "1.1.1.1", "10.0.0.7")
    assert error.final
    assert "10.0.0.7" not in error.message
    assert not refused("https://hooks.example.org/").final, "a name that is not found may be there later"


def test_errors_do_not_name_the_host_of_an_address_that_is_a_secret() -> None:
    def told(address: str, *found: str) -> str:
        poster = Poster(Allowed.of("127.0.0.0/8"), look_up=lambda host, port, within_s: found)
        with pytest.raises(NotDelivered) as caught:
            anyio.run(partial(poster.post, called="the host in secret SLACK"), address, {}, b"{}")
        return caught.value.message

    assert told("https://hooks.example.org/") == "the host in secret SLACK cannot be found."
    assert told("https://hooks.example.org/", "10.0.0.7").startswith("the host in secret SLACK leads to")
    assert told("http://hooks.example.org:1/", "127.0.0.1") == "ConnectError: the connection broke."


def test_a_target_shows_no_query_and_the_log_only_the_host() -> None:
    address = "https://hooks.example.org:8443/in/path-token?key=query-token#x"
    channel = AlertChannel(webhook=address, secret="HOOK")
    assert channel.target == "webhook https://hooks.example.org:8443/in/path-token"
    assert host_of(channel.model_dump(mode="json"), channel.target) == "hooks.example.org"
    assert host_of({"slack": "SLACK"}, "slack SLACK") == "slack SLACK"


@pytest.mark.parametrize("address", ["ftp://h/x", "http://u:p@h/x", "http:///x", "http://h /x", "//h/x", ""])
def test_addresses_that_are_none_are_refused(address: str) -> None:
    assert refused(address, "1.1.1.1").final


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with receiver() as hook:
        post(hook.url, "127.0.0.1", allowed="127.0.0.0/8")
    assert len(hook.posted) == 1


@contextmanager
def silent() -> Iterator[int]:
    """A port whose server takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_one_that_never_answers_is_given_up_at_the_deadline() -> None:
    with silent() as port:
        error = refused(f"http://h:{port}/", "127.0.0.1", allowed="127.0.0.1", deadline_s=0.2)
    assert (error.message, error.final) == ("no answer within 0.2 s.", False)


def test_another_address_of_the_name_is_tried_where_the_first_refuses_the_connection() -> None:
    with receiver() as hook:
        post(f"http://h:{hook.port}/", "127.9.9.9", "127.0.0.1", allowed="127.0.0.0/8")
    assert len(hook.posted) == 1


def test_a_signature_is_that_of_standard_webhooks() -> None:
    """The example of its specification's libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    told = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert told == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    plain = signature("text", "a", 1, b"{}")
    assert plain == signature("whsec_" + base64.b64encode(b"text").decode(), "a", 1, b"{}")


def test_slack_sees_no_markup_of_names() -> None:
    text = slack_text(BODY)
    assert text.startswith("&lt;!channel&gt; a&amp;b\nis failed (rule broken of project vision)")
    assert text.endswith("\n<https://rl.example.org/jobs/job_1>")
    assert "<!" not in text


def test_a_mail_is_plain_text_with_one_line_of_subject() -> None:
    mail = mail_to("ops@example.org", "rl@example.org", BODY)
    assert mail["Subject"] == "[ringleader] <!channel> a&b is failed"
    assert (mail["To"], mail["From"], mail["Message-ID"]) == (
        "ops@example.org",
        "rl@example.org",
        "<alert_1@example.org>",
    )
    assert mail.get_content_type() == "text/plain"
    assert "reason code: x" in mail.get_content()


def test_a_mail_is_read_by_people_whatever_letters_and_lists_it_has_and_by_servers_of_seven_bits() -> None:
    message = "digits has failed: Datei für Münzen fehlt " + "x" * 1200
    data = {
        "state": "failed",
        "reason": {"code": "user_error", "message": "Datei für Münzen fehlt"},
        "causes": ["gone", "größer"],
        "value": 2.5,
        "bound": None,
    }
    mail = mail_to(
        "ops@example.org", "rl@example.org", BODY.model_copy(update={"message": message, "data": data})
    )
    sent = mail.as_bytes()
    assert sent.isascii()
    assert max(map(len, sent.splitlines())) < 998
    read = email.message_from_bytes(sent, policy=policy.default)
    assert isinstance(read, EmailMessage)
    assert read["Subject"].startswith("[ringleader] digits has failed: Datei für Münzen fehlt")
    lines = read.get_content().splitlines()
    assert lines[:4] == [message, "", "https://rl.example.org/jobs/job_1", ""]
    assert lines[4:] == [
        *("project: vision", "rule: broken", "at: 2026-11-20 12:00:00 UTC", "state: failed"),
        *("reason code: user_error", "causes: gone, größer", "value: 2.5"),
    ]


@contextmanager
def mailbox(*, refuses: bool = False) -> Iterator[tuple[int, list[str]]]:
    """A mail server that takes one mail, or refuses it."""
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as said:
                connection.sendall(b"220 here\r\n")
                in_mail = False
                for raw in said:
                    line = raw.decode().rstrip("\r\n")
                    lines.append(line)
                    if in_mail:
                        if line == ".":
                            in_mail = False
                            connection.sendall(b"250 taken\r\n")
                        continue
                    word = line[:4].upper()
                    if word == "DATA":
                        in_mail = True
                    answers = {"DATA": b"354 go on\r\n", "QUIT": b"221 bye\r\n"}
                    refused = refuses and word == "RCPT"
                    connection.sendall(b"550 not <here>\r\n" if refused else answers.get(word, b"250 ok\r\n"))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], lines
        thread.join(10)


def test_a_mail_goes_out_through_the_operators_server() -> None:
    with mailbox() as (port, lines):
        server = MailServer("127.0.0.1", port, "rl@example.org", security="none")
        server.send(mail_to("ops@example.org", "rl@example.org", BODY))
    assert "Subject: [ringleader] <!channel> a&b is failed" in lines
    assert any(line.lower().startswith("rcpt to:<ops@example.org>") for line in lines)


class SlowServer(MailServer):
    """Answers later than anybody waits."""

    def send(self, mail: EmailMessage) -> None:
        raise TimeoutError


def test_a_mail_server_has_longer_than_a_post() -> None:
    nothing: Any = None
    server = SlowServer("127.0.0.1", 25, "rl@example.org")
    channels = Channels(nothing, nothing, nothing, lambda: BODY.at, url="https://rl", mail=server)
    mail = {"channel": {"mail": "ops@example.org"}, "job_id": "job_1", "job_name": "b"}
    told = BODY.model_dump(exclude={"job"})
    with pytest.raises(NotDelivered, match="did not answer within 60 s"):
        anyio.run(channels.send, AlertRow(**told, **mail))


def test_a_mail_that_is_refused_says_so_without_the_servers_words() -> None:
    with mailbox(refuses=True) as (port, _):
        server = MailServer("127.0.0.1", port, "rl@example.org", security="none")
        with pytest.raises(NotTaken, match="the mail server"):
            server.send(mail_to("ops@example.org", "rl@example.org", BODY))
