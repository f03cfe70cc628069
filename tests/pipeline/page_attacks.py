"""Texts that try to become markup that runs, or to make the browser ask another machine. Each calls hit() if it can."""

AWAY = "http://outside.example"
ATTACKS = [
    "<script>hit()</script>",
    "<ScRiPt >hit()</sCrIpT>",
    "<img src=x onerror=hit()>",
    f"<img src='{AWAY}/pixel.png'>",
    f"![picture]({AWAY}/pixel.png)",
    f"![picture][p]\n\n[p]: {AWAY}/reference.png",
    "![x](data:image/svg+xml,<svg/onload=hit()>)",
    "<svg onload=hit()></svg>",
    "<svg><script>hit()</script></svg>",
    "<svg><animate onbegin=hit() attributeName=x dur=1s></svg>",
    "<svg><a xlink:href='javascript:hit()'><text y=20>x</text></a></svg>",
    "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=hit()&gt;\">",
    "<math><mi//xlink:href='data:x,<script>hit()</script>'>",
    "<form><math><mtext></form><form><mglyph><style></math><img src onerror=hit()>",
    "<noscript><p title=\"</noscript><img src=x onerror=hit()>\">",
    "<template><img src=x onerror=hit()></template>",
    "<iframe src=javascript:hit()></iframe>",
    f"<iframe src='{AWAY}/frame'></iframe>",
    "<iframe srcdoc='<script>parent.hit()</script>'></iframe>",
    "<object data='javascript:hit()'></object><embed src='javascript:hit()'>",
    "<details open ontoggle=hit()>x</details>",
    "<body onload=hit()><input autofocus onfocus=hit()>",
    "<video><source onerror=hit()></video><audio src=x onerror=hit()>",
    f"<video poster='{AWAY}/poster.png' src='{AWAY}/v.mp4'></video>",
    "<style>@import 'http://outside.example/s.css'; * { background: url(http://outside.example/b.png) }</style>",
    f"<p style='background:url({AWAY}/b.png)'>x</p>",
    f"<link rel=stylesheet href='{AWAY}/l.css'><link rel=dns-prefetch href='{AWAY}'>",
    f"<meta http-equiv=refresh content='0;url={AWAY}/'><base href='{AWAY}/'>",
    "[link](javascript:hit())",
    "[link](JaVaScRiPt:hit())",
    "[link](java\nscript:hit())",
    "[link](&#106;avascript:hit())",
    "[link](\x01javascript:hit())",
    "[link](data:text/html,<script>hit()</script>)",
    "[link](vbscript:hit)",
    "<javascript:hit()>",
    "[link][j]\n\n[j]: javascript:hit()",
    "[x](https://e.example \"title\" onmouseover=hit())",
    "[x](https://e.example/\"onmouseover=\"hit())",
    "[<img src=x onerror=hit()>](https://e.example)",
    "`<img src=x onerror=hit()>`",
    "```html\n<img src=x onerror=hit()><script>hit()</script>\n```",
    "```\"><img/src=x/onerror=hit()>\nx\n```",
    "```javascript onload=hit()\n</code></pre><script>hit()</script>\n```",
    "| <img src=x onerror=hit()> | b |\n|---|---|\n| <script>hit()</script> | c |",
    "- [ ] <img src=x onerror=hit()>\n- [x] b",
    "# <img src=x onerror=hit()>\n\n> <script>hit()</script>",
    "<a id=body name=cookie href='x'>clobbers</a><form id=send><input name=textContent></form>",
    "<b onclick=hit()>bold</b><b/onclick=hit()>",
    "<b><script>hit()</script></b><BR/onload=hit()>",
    "&lt;script&gt;hit()&lt;/script&gt;",
    "<!--><img src=x onerror=hit()>-->",
    "<![CDATA[><img src=x onerror=hit()>]]>",
    "<?xml-stylesheet href='javascript:hit()'?>",
    "a<img src=x onerror=hit()//",
    "<<script>hit()//<</script>",
    "<x-y onpointerenter=hit() style='position:fixed;inset:0'>",
    "{{constructor.constructor('hit()')()}}${hit()}",
]

# Texts that make parsers slow.
HEAVY = [mark * 12000 for mark in ("**a ", "_a", "> ", "[", "<a ", "`", "[a](", "- ")] + \
    ["".join("  " * i + "- x\n" for i in range(300)), "word " * 50000]

# Everything that markup of the page may have: names of elements, and of their attributes.
ALLOWED = {"a": {"href", "target", "rel", "title"}, "button": {"type", "title", "class"}, "code": {"class", "data-language"},
           "div": {"class", "dir", "tabindex", "role", "aria-label"}, "figure": {"class"}, "pre": {"tabindex", "dir"}, "span": {"class"}, "td": {"align"}, "th": {"align"},
           "ol": {"start"}, **{name: set() for name in (
               "b", "blockquote", "br", "del", "details", "em", "figcaption", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "ins",
               "kbd", "li", "mark", "p", "s", "strong", "sub", "summary", "sup", "table", "tbody", "thead", "tr", "u", "ul")}}

# Draws a text as an answer is drawn, in pieces and whole, and tells what it became.
DRAW = """(async text => {
  const {drawer} = await import(new URL("page/markdown.js", location.href)), at = document.createElement("div");
  document.querySelector("#talk").append(at);
  const draw = drawer(at);
  for (let n = 1; n < text.length; n += 7) draw(text.slice(0, n), false);
  draw(text, true);
  const found = [...at.querySelectorAll("*")].map(e =>
    [e.localName, e.namespaceURI, [...e.attributes].map(a => [a.name, a.value])]);
  for (const e of at.querySelectorAll("*"))
    for (const type of ["click", "mouseover", "focus", "toggle", "pointerenter"])
      if (e.localName !== "a" && e.localName !== "button") e.dispatchEvent(new Event(type, {bubbles: true}));
  await new Promise(resolve => setTimeout(resolve, 0));
  at.remove();
  return found;
})"""


def faults(text, found):
    """What of the elements that a text became may not be there."""
    wrong = []
    for name, space, attributes in found:
        if name not in ALLOWED or space != "http://www.w3.org/1999/xhtml":
            wrong.append(f"{text!r}: element {name}")
        for attribute, value in attributes:
            if attribute not in ALLOWED.get(name, ()):
                wrong.append(f"{text!r}: attribute {attribute} of {name}")
            if attribute == "href" and not value.lower().startswith(("http://", "https://", "mailto:")):
                wrong.append(f"{text!r}: address {value}")
    return wrong
