"""How the page looks, and the rule that it may only talk to the server it came from."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ASSETS = Path(__file__).resolve().parents[2] / "assets"

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # Gradio builds its templates with Function()
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "frame-src 'none'",
        "base-uri 'self'",
        "form-action 'none'",
    )
)
"""Content-Security-Policy: whatever a reply may contain, the browser asks nobody else for anything."""

SANS = (
    "system-ui",
    "-apple-system",
    "Segoe UI",
    "Roboto",
    "Noto Sans",
    "Helvetica Neue",
    "Arial",
    "sans-serif",
)
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

INK = gr.themes.Color(
    c50="#f7f8f8", c100="#eef0f1", c200="#dfe3e5", c300="#c5cbcf", c400="#949da3", c500="#69737a",
    c600="#4e575d", c700="#3a4247", c800="#262c30", c900="#191d20", c950="#111416", name="ink",
)  # fmt: skip
DRAFT = gr.themes.Color(
    c50="#eef7fa", c100="#d6ecf3", c200="#aed9e7", c300="#7cc1d7", c400="#45a3c1", c500="#1f86a7",
    c600="#0f6d8c", c700="#0d5a74", c800="#0e4a5f", c900="#0f3d4e", c950="#08252f", name="draft",
)  # fmt: skip


def theme() -> gr.themes.Base:
    """Neutral ink with the draft's hue as the only accent; system fonts, so nothing is fetched."""
    return gr.themes.Base(
        primary_hue=DRAFT,
        secondary_hue=DRAFT,
        neutral_hue=INK,
        radius_size=gr.themes.sizes.radius_md,
        spacing_size=gr.themes.sizes.spacing_sm,
        text_size=gr.themes.sizes.text_md,
        font=[gr.themes.Font(name) for name in SANS],
        font_mono=[gr.themes.Font(name) for name in MONO],
    ).set(
        body_background_fill="#fbfbfb",
        body_background_fill_dark="*neutral_950",
        block_border_width="0px",
        block_shadow="none",
        block_shadow_dark="none",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        input_background_fill="#f1f3f4",
        input_background_fill_dark="#22282c",
        input_border_width="0px",
        button_transition="none",  # it would be drawn sixty times a second whenever a reply begins
        button_secondary_background_fill="#eceff0",
        button_secondary_background_fill_hover="#dfe3e5",
        button_secondary_background_fill_dark="#2b3237",
        button_secondary_background_fill_hover_dark="#3a4247",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_500",
        button_primary_text_color="white",
        slider_color="*primary_600",
        slider_color_dark="*primary_400",
    )


class LocalOnly:
    """Adds the policy to every response; streams pass untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", []), (b"content-security-policy", POLICY.encode())]
                message = {**message, "headers": [*headers, (b"referrer-policy", b"no-referrer")]}
            await send(message)

        await self.app(scope, receive, add if scope["type"] == "http" else send)


class Foremost:
    """Puts a script before everything else of the page. What Gradio is given for the head comes too late to change what
    its own modules take from the browser: they have run by then."""

    def __init__(self, app: ASGIApp, script: str) -> None:
        self.app = app
        self.script = f"<script>{script}</script>".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []

        async def put(message: Message) -> None:
            if message["type"] == "http.response.start" and _is_page(message):
                held.append(message)
            elif not held:
                await send(message)
            else:
                held.append(message)
                if not message.get("more_body"):
                    for whole in self._with_script(held):
                        await send(whole)

        await self.app(scope, receive, put if scope["type"] == "http" and scope["path"] == "/" else send)

    def _with_script(self, held: list[Message]) -> tuple[Message, Message]:
        start, *parts = held
        body = b"".join(part.get("body", b"") for part in parts).replace(
            b"<head>", b"<head>" + self.script, 1
        )
        headers = [header for header in start["headers"] if header[0].lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        return {**start, "headers": [*headers, length]}, {"type": "http.response.body", "body": body}


def _is_page(start: Message) -> bool:
    """Whether an answer begins that is a page as it is, not packed."""
    headers = {name.lower(): value for name, value in start["headers"]}
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers


def launch_kwargs(*within: Middleware) -> dict[str, object]:
    """What belongs to launch() rather than to Blocks: look, policy, and everything that would call home switched off.

    within: what else is to see every request.
    """
    # The style sheet goes into the head as it is: Gradio rewrites the selectors of what it is given as css.
    others = sorted(path for path in ASSETS.glob("*.css") if path.name != "page.css")
    style = "".join(path.read_text(encoding="utf-8") for path in (ASSETS / "page.css", *others))
    parts = sorted(path for path in ASSETS.glob("*.js") if path.name not in ("page.js", "first.js"))
    script = "".join(path.read_text(encoding="utf-8") for path in (ASSETS / "page.js", *parts))
    first = (ASSETS / "first.js").read_text(encoding="utf-8")
    return {
        "theme": theme(),
        "head": f"<style>{style}</style><script>{script}</script>",
        "favicon_path": ASSETS / "logo.svg",
        "app_kwargs": {"middleware": [Middleware(LocalOnly), Middleware(Foremost, script=first), *within]},
        "footer_links": [],
        "run_history": False,
        "enable_monitoring": False,
        "share": False,
        "pwa": False,
        "ssr_mode": False,
        "mcp_server": False,
    }
