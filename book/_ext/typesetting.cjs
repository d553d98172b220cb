/**
 * Typeset formulas with MathJax: read [[{ tex, display }, …], …] from standard input, a list for each page, and write
 * [{ formulas: [html, …], css }, …]. The arguments are MathJax's folder, its settings as JSON, and the fonts' address.
 */

const { readFileSync } = require("node:fs");

const [folder, settings, fontURL] = process.argv.slice(2);
const { tex, chtml } = JSON.parse(settings);
const load = ["input/tex", "output/chtml", "adaptors/liteDOM", "a11y/assistive-mml"];

require(`${folder}/node-main.js`)
  .init({ loader: { load, paths: { mathjax: folder } }, tex, chtml: { ...chtml, fontURL, adaptiveCSS: true } })
  .then(async (MathJax) => {
    const pages = [];
    for (const page of JSON.parse(readFileSync(0, "utf8"))) {
      MathJax.startup.output.clearCache(); // the styles of this page's characters only
      const formulas = [];
      for (const { tex, display } of page) {
        const formula = await MathJax.tex2chtmlPromise(tex, { display });
        formulas.push(MathJax.startup.adaptor.outerHTML(formula));
      }
      pages.push({ formulas, css: MathJax.startup.adaptor.textContent(MathJax.chtmlStylesheet()) });
    }
    process.stdout.write(JSON.stringify(pages));
  })
  .catch((error) => {
    process.stderr.write(`${error.stack ?? error}\n`);
    process.exitCode = 1;
  });
