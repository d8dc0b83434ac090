// Each page, also one that the theme loads by itself: formulas are drawn, and short names are kept whole.
document$.subscribe(({ body }) => {
  for (const code of body.querySelectorAll(":not(pre) > code")) {
    code.classList.toggle("whole", code.textContent.length <= 36 && !/\s/.test(code.textContent))
  }
  // Without a network KaTeX is missing, and formulas stand as they were written.
  if (window.renderMathInElement) {
    renderMathInElement(body, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: false,
    })
  }
})
