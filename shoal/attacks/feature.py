"""The feature `attacks`: what models, or uploads of a round, tell of clients."""

from shoal.features.feature import Feature

ATTACKS = Feature(
    readers={
        "inversion": "shoal.attacks.inversion:InversionReader",
        "membership": "shoal.attacks.membership:MembershipReader",
        "properties": "shoal.attacks.properties:PropertiesReader",
    },
    command="attack",
    runs="shoal.attacks.command:attack_command",
    behind="privacy",
)
