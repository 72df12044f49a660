"""The operator's mail server: one connection for each mail."""

import smtplib
import ssl
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Literal

from ringleader.errors import RingleaderError

SMTP_TIMEOUT_S = 30.0
"""The time for each answer of the server."""
Security = Literal["starttls", "tls", "none"]


class NotTaken(RingleaderError):
    """The mail server has not taken a mail."""

    code = "mail_not_taken"


@dataclass(frozen=True, slots=True)
class MailServer:
    """The server by which mail goes out. `security`: TLS from the beginning, from STARTTLS on, or none."""

    host: str
    port: int
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)
    security: Security = "starttls"

    def send(self, mail: EmailMessage) -> None:
        """Send one mail. Raises NotTaken."""
        try:
            with self._connected() as server:
                if self.security == "starttls":
                    # smtplib's own context would take any certificate.
                    server.starttls(context=ssl.create_default_context())
                if self.user:
                    server.login(self.user, self.password)
                server.send_message(mail)
        except (OSError, smtplib.SMTPException) as error:
            raise NotTaken(f"the mail server {_told(error)}.") from None

    def _connected(self) -> smtplib.SMTP:
        if self.security == "tls":
            context = ssl.create_default_context()
            return smtplib.SMTP_SSL(self.host, self.port, timeout=SMTP_TIMEOUT_S, context=context)
        return smtplib.SMTP(self.host, self.port, timeout=SMTP_TIMEOUT_S)


def _told(error: OSError | smtplib.SMTPException) -> str:
    """The trouble in words of our own: a server may repeat in its what it was sent."""
    match error:
        case smtplib.SMTPAuthenticationError() | smtplib.SMTPSenderRefused(smtp_code=530):
            told = f"refuses the login ({error.smtp_code}): check RINGLEADER_SMTP_USER and RINGLEADER_SMTP_PASSWORD"
        case smtplib.SMTPSenderRefused():
            told = f"takes no mail from RINGLEADER_SMTP_FROM ({error.smtp_code})"
        case smtplib.SMTPRecipientsRefused():
            codes = sorted({str(code) for code, _ in error.recipients.values()})
            told = f"takes no mail to this address ({', '.join(codes)})"
        case smtplib.SMTPResponseException():
            told = f"answered {error.smtp_code}"
        case smtplib.SMTPNotSupportedError():
            told = "offers no STARTTLS, or no login: check RINGLEADER_SMTP_SECURITY and RINGLEADER_SMTP_USER"
        case ssl.SSLCertVerificationError():
            why = error.verify_message
            told = (
                f"has a certificate that is not trusted ({why}): check RINGLEADER_SMTP_HOST and SSL_CERT_FILE"
            )
        case _:
            told = f"cannot be used ({type(error).__name__})"
    return told
