from tests.house import house as house
