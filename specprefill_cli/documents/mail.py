"""Mail (EML) and saved web pages (MHTML): the head, the body as text, and the attached documents."""

from email import message_from_bytes, policy
from email.message import EmailMessage, MIMEPart

from specprefill_cli.documents.cleaning import clean_text
from specprefill_cli.documents.encoding import decode_text
from specprefill_cli.documents.html import visible_text
from specprefill_cli.documents.reader import Pages, SourceFile

HEADERS = ("From", "To", "Cc", "Date", "Subject")
SIGNATURES = ("application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature")


def pages(file: SourceFile) -> Pages:
    """Yield the head and the body, then a page for each attached document that can be read."""
    message = message_from_bytes(file.data, policy=policy.default)
    assert isinstance(message, EmailMessage)
    head = "\n".join(f"{name}: {message[name]}" for name in HEADERS if message[name])
    body = message.get_body(("plain", "html"))
    yield "\n\n".join(filter(None, (head, body_text(file, body) if body else "")))
    for part in message.iter_attachments() if message.is_multipart() else () if body else (message,):
        # Pictures of the body have an identifier; they are part of its design.
        if part.get_content_type() in SIGNATURES or (part.get_content_maintype() == "image" and part["Content-ID"]):
            continue
        is_message = part.get_content_type() == "message/rfc822"
        data = part.get_content().as_bytes() if is_message else content(part)
        text = file.attached(part.get_filename() or ("message.eml" if is_message else part.get_content_type()), data)
        yield from (text,) if text else ()


def body_text(file: SourceFile, body: MIMEPart) -> str:
    """The text of a message's body, in its character set; of HTML what a browser shows."""
    try:
        text = body.get_content()
    except LookupError:
        # A character set that Python does not know.
        text = decode_text(SourceFile(content(body), file.name, file.limits))
    return visible_text(text, file.stop)[1] if body.get_content_subtype() == "html" else clean_text(text).strip()


def content(part: MIMEPart) -> bytes:
    """The bytes of a part."""
    data = part.get_payload(decode=True)
    return data if isinstance(data, bytes) else b""
