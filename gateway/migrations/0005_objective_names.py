"""Names of objectives are unique by whoever they are of: the platform, or one tenant."""

from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps

LONGEST = 120


def number_namesakes(apps: StateApps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """The oldest keeps its name; those after it are "name (2)", "name (3)", as far as these are free."""
    objectives = apps.get_model("gateway", "Objective")
    schema_editor.execute(f"LOCK TABLE {objectives._meta.db_table} IN SHARE ROW EXCLUSIVE MODE")
    taken: dict[object, set[str]] = {}
    namesakes = []
    for one in objectives.objects.order_by("pk").only("pk", "name", "tenant_id", "tenants_own"):
        names = taken.setdefault(one.tenant_id if one.tenants_own else None, set())
        if one.name in names:
            namesakes.append((one, names))
        names.add(one.name)
    for one, names in namesakes:
        number, name = 1, one.name
        while name in names:
            number += 1
            ending = f" ({number})"
            name = one.name[: LONGEST - len(ending)] + ending
        names.add(name)
        objectives.objects.filter(pk=one.pk).update(name=name)


class Migration(migrations.Migration):
    dependencies = [("gateway", "0004_objectives")]

    operations = [
        migrations.RunPython(number_namesakes, migrations.RunPython.noop),
        migrations.AddConstraint(
            model_name="objective",
            constraint=models.UniqueConstraint(
                fields=["name"], condition=models.Q(("tenants_own", False)), name="gateway_objective_name_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="objective",
            constraint=models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=models.Q(("tenants_own", True)),
                name="gateway_objective_tenants_name_once",
            ),
        ),
    ]
