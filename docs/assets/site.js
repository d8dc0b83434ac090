// Each page, also one that the theme loads by itself: short names are kept whole.
document$.subscribe(({ body }) => {
  for (const code of body.querySelectorAll(":not(pre) > code")) {
    code.classList.toggle("whole", code.textContent.length <= 36 && !/\s/.test(code.textContent))
  }
})
