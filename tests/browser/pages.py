"""Addresses that are looked at in both themes and on a narrow screen; every new page is added here."""

CONSOLE = [
    "/console/requests/",
    "/console/requests/stages/",
    "/console/overview/",
    "/console/instances/",
    "/console/instances/?q=none",
    "/console/instances/attach/",
    "/console/engines/",
    "/console/engines/vllm/off/",
    "/console/fit/",
    "/console/tenants/",
]
PORTAL = [
    "/t/acme/requests/",
    "/t/acme/requests/refused/",
    "/t/acme/",
    "/t/acme/keys/",
    "/t/acme/keys/new/",
    "/t/acme/usage/?range=1h",
    "/t/empty/usage/",
]
