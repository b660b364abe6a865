// Numbers, times and elements.

export function count(value) {
  if (value == null || !Number.isFinite(value)) return "";
  if (value < 1e5) return Math.round(value).toLocaleString("en-US");
  if (value < 1e6) return (value / 1e3).toFixed(0) + " k";
  if (value < 1e9) return (value / 1e6).toFixed(value < 1e7 ? 2 : 1) + " M";
  return (value / 1e9).toFixed(2) + " G";
}

export function number(value) {
  if (value == null || !Number.isFinite(value)) return "";
  if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return value.toFixed(size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 4);
}

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds) || seconds < 0) return "";
  if (seconds < 60) return Math.round(seconds) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 86400) {
    const minutes = Math.floor((seconds % 3600) / 60);
    return Math.floor(seconds / 3600) + " h" + (minutes ? " " + minutes + " min" : "");
  }
  return (seconds / 86400).toFixed(1) + " d";
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit++; }
  return (unit && value < 100 ? value.toFixed(1) : Math.round(value)) + " " + units[unit];
}

// 20261115T082500Z, in seconds since 1970.
export function startOf(text) {
  const parts = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(text ?? "");
  if (!parts) return null;
  const [year, month, day, hour, minute, second] = parts.slice(1).map(Number);
  return Date.UTC(year, month - 1, day, hour, minute, second) / 1000;
}

// element("td", {class: "x", onclick: f}, "text", child, …)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.filter(child => child != null));
  return made;
}
