"""What every control API is made of: views, pages, filters, ETags, idempotency keys, request ids.

Nothing here knows a tenant; the view that knows its person is `tenants.api.base.ControlView`.
"""
