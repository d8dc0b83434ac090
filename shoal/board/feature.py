"""The feature `board`: methods by settings, from finished runs, which `shoal verify` makes again."""

from shoal.features.feature import Feature

BOARD = Feature(
    command="board",
    runs="shoal.board.command:board_command",
    behind="report",
    verifies=("board.json", "shoal.board.verify_board:verify_board"),
)
