const show = (id, text) => { document.getElementById(id).textContent = text; };

async function refresh() {
  try {
    const health = await (await fetch("/health", { cache: "no-store" })).json();
    show("status", health.status);
    show("phase", health.phase);
    show("clients", health.clients);
    show("uptime", `${health.uptimeSeconds} s`);
    show("instance", health.instanceId);
    show("version", health.version);
  } catch {
    show("status", "not reachable");
  }
}

refresh();
setInterval(refresh, 2000);
