"use strict";
(() => {
  const {plots, theme, plotly} = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const small = matchMedia("(max-width: 560px), (pointer: coarse)");

  const toned = (value, colours) => {
    if (typeof value === "string") return colours.get(value) ?? value;
    if (Array.isArray(value)) return value.map((one) => toned(one, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, toned(one, colours)]));
  };

  const draw = () => {
    const colours = new Map(dark.matches ? theme : []);
    for (const [key, figure] of Object.entries(plots)) {
      const {data, layout} = toned(figure, colours);
      // On a phone a finger scrolls the page; it must not be caught by a plot.
      layout.dragmode = small.matches ? false : "zoom";
      layout.font.family = getComputedStyle(document.body).fontFamily;
      if (small.matches) {
        layout.margin = {...layout.margin, l: Math.min(layout.margin.l, 46), r: 8};
        layout.xaxis = {...layout.xaxis, tickangle: 0, nticks: 4};
      }
      const config = {responsive: true, displaylogo: false, displayModeBar: false, showTips: false};
      Plotly.react(`plot-${key}`, data, layout, config);
    }
  };

  const script = document.createElement("script");
  script.src = plotly;
  script.onload = () => {
    draw();
    dark.addEventListener("change", draw);
    small.addEventListener("change", draw);
    document.documentElement.dataset.drawn = "yes";
  };
  script.onerror = () => {
    for (const plot of document.querySelectorAll(".plot")) plot.textContent = `The plot needs ${plotly} beside this page.`;
    document.documentElement.dataset.drawn = "no";
  };
  document.head.append(script);
})();
