// highlighter.js - a worker that colours code with highlight.js, so that the page does not wait for it: its regular
// expressions may take very long for a text that is made for that. What it sends is HTML, which the page cleans.
import "./highlight.js";

self.onmessage = ({data: {number, language, text}}) => {
  let html = null;
  try {
    if (self.hljs.getLanguage(language)) html = self.hljs.highlight(language, text, true).value;
  } catch {
    // stays plain
  }
  self.postMessage({number, html});
};
