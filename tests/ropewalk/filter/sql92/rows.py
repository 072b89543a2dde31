"""Expressions of the language, with what each gives: for this evaluator, and for RocketMQ's."""

from __future__ import annotations

Rows = list[tuple[str, dict[str, str], bool]]
"""Expression, properties, and whether the message is delivered."""

EXAMPLES: Rows = [
    ("a > 3 AND b = 'x'", {"a": "4", "b": "x"}, True),
    ("a > 3 AND b = 'x'", {"a": "3", "b": "x"}, False),
    ("a > 3 AND b = 'x'", {"a": "4", "b": "X"}, False),
    ("a > 3 AND b = 'x'", {"a": "4"}, False),
    ("a > 3", {"a": "3000000000"}, False),
    ("a > 3000000000", {"a": "3000000001"}, True),
    ("a >= 2.5", {"a": "3"}, True),
    ("a IS NULL OR a < 5", {}, True),
    ("a <> 5", {}, False),
    ("(TAGS is not null and TAGS in ('TagA','TagB'))", {"TAGS": "TagB"}, True),
    ("(TAGS is not null and TAGS in ('TagA','TagB'))", {"TAGS": "TagC"}, False),
    ("k NOT IN ('a')", {}, False),
    ("n CONTAINS 'mq'", {"n": "rocketmq"}, True),
    ("n NOT CONTAINS ''", {"n": "x"}, False),
]

THREE_VALUES: Rows = [
    ("NOT (a > 3)", {}, False),  # unknown stays unknown
    ("a > 3 OR TRUE", {}, True),
    ("TRUE OR a > 3", {}, True),
    ("NOT (a > 3 AND FALSE)", {}, True),
    ("NOT (FALSE AND a > 3)", {}, True),
    ("a > 3 OR FALSE", {}, False),
    ("(a > 3) IS NULL", {}, True),
    ("(a > 3) IS NOT NULL", {}, False),
    ("(a > 3 OR b > 3 OR FALSE) IS NULL", {"b": "1"}, True),
    ("(a > 3 AND b > 3 AND TRUE) IS NULL", {"b": "4"}, True),
    ("NULL", {}, False),
    ("TRUE", {}, True),
]

NULL_AND_EQUAL: Rows = [
    ("a = b", {}, True),  # both are missing
    ("a <> b", {}, False),
    ("a = b", {"b": "x"}, False),
    ("(a = b) IS NULL", {"b": "x"}, True),
    ("(a = b) IS NULL", {"a": "x"}, False),  # missing on the right is "not equal"
    ("a <> b", {"a": "x"}, True),
    ("5 <> a", {}, True),
    ("a <> 5", {}, False),
    ("a = b", {"a": "x", "b": "x"}, True),
    ("a = b", {"a": "5", "b": "05"}, False),  # two texts are compared as texts
    ("a IS NULL", {}, True),
    ("a IS NULL", {"a": "NULL"}, False),
    ("a IS NOT NULL", {"a": "x"}, True),
    ("5 IS NULL", {}, False),
    ("a IS NULL IS NULL", {}, False),
]

NUMBERS: Rows = [
    ("a = 5", {"a": "5"}, True),
    ("a = 5", {"a": "005"}, True),
    ("a = 5", {"a": "+5"}, True),
    ("a = 5", {"a": "5.0"}, False),
    ("a = 5", {"a": " 5"}, False),
    ("a = 5", {"a": "5_0"}, False),
    ("a = 50", {"a": "5_0"}, False),
    ("a = 5", {"a": "٥"}, True),  # Java reads digits of every script
    ("5 = a", {"a": "5"}, True),
    ("a = 5L", {"a": "3000000000"}, False),  # the L says nothing: 5 has 32 bits
    ("a > 2147483647", {"a": "2147483648"}, False),
    ("a >= 2147483648", {"a": "2147483648"}, True),
    ("a = -2147483648", {"a": "-2147483648"}, True),
    ("a = 9223372036854775807", {"a": "9223372036854775807"}, True),
    ("a > -5", {"a": "-4"}, True),
    ("a > - -5", {"a": "6"}, True),
    ("a > +5", {"a": "6"}, True),
    ("3 < a", {"a": "4"}, True),
    ("3 < a", {"a": "3"}, False),
    ("3 <= a", {"a": "3"}, True),
    ("4 > 3", {}, True),
    ("3 > 4", {}, False),
    ("4 > 3.5", {}, True),
    ("5 = 5.", {}, True),
    ("'5' = 5", {}, True),
    ("a > 2.5", {"a": " 2.6f "}, True),
    ("a > 2.5", {"a": "0x1p3"}, True),
    ("a > 2.5", {"a": "Infinity"}, True),
    ("a > 2.5", {"a": "NaN"}, True),  # above everything
    ("a < 2.5", {"a": "NaN"}, False),
    ("2.5 < a", {"a": "NaN"}, True),
    ("a > 2.5", {"a": "nan"}, False),
    ("a > 5E1", {"a": "51"}, True),
    ("a > .5", {"a": "1"}, True),
    ("a > b", {"a": "10", "b": "9"}, True),
    ("a > b", {"a": "x", "b": "9"}, False),
    ("a > b", {"a": "0.0", "b": "-0.0"}, True),
    ("a >= b", {"a": "NaN", "b": "NaN"}, True),
    ("-a IS NULL", {"a": "5"}, True),  # a property's text is never negated
    ("-a = -5", {"a": "5"}, False),
    ("b < -a", {"a": "5", "b": "-6"}, False),
]

ABORTS: Rows = [
    ("a = '5' OR s > 5", {"a": "5", "s": "x"}, True),
    ("s > 5 OR a = '5'", {"a": "5", "s": "x"}, False),
    ("NOT (s > 5)", {"s": "x"}, False),
    ("s > 5 OR TRUE", {"s": "x"}, False),
    ("s = 5 IS NULL", {"s": "x"}, False),
    ("FALSE AND s > 5 OR a = '5'", {"a": "5", "s": "x"}, True),
    ("NOT s = 'x'", {"s": "x"}, False),
    ("NOT s = 'x'", {"s": "y"}, False),
    ("TRUE OR NOT s = 'x'", {"s": "y"}, True),
    ("-(s > 5) IS NULL", {"s": "x"}, False),
    ("-(s > 5) IS NULL", {"s": "6"}, True),
    ("-(s > 5) > 3 OR TRUE", {"s": "x"}, False),
    ("t > -(s > 5) OR TRUE", {"s": "x", "t": "1"}, False),
    ("t > -(s > 5) OR TRUE", {"s": "x"}, True),  # null on the left: the right is not looked at
    ("(s > 5) CONTAINS 'x' OR TRUE", {"s": "x"}, False),
    ("(s > 5) CONTAINS '' OR TRUE", {"s": "x"}, True),
]

TRUTHS: Rows = [
    ("p = TRUE", {"p": "TrUe"}, True),
    ("p = TRUE", {"p": "yes"}, False),
    ("p = FALSE", {"p": "yes"}, True),
    ("p = FALSE", {}, False),
    ("TRUE = p", {"p": "true"}, False),
    ("TRUE = p OR TRUE", {"p": "true"}, False),  # it does not only fail, it ends the evaluation
    ("p", {"p": "true"}, False),
    ("NOT p", {"p": "true"}, True),
    ("NOT p", {}, False),
    ("(a > 3) = TRUE", {"a": "4"}, True),
    ("(a > 3) = (b > 3)", {"a": "4", "b": "5"}, True),
    ("p = (a > 3)", {"a": "4", "p": "true"}, True),
    ("(a > 3) = 5", {"a": "4"}, False),
    ("(a > 3) <> 5", {"a": "4"}, True),
    ("5 = TRUE", {}, False),
    ("TRUE = TRUE", {}, True),
    ("TRUE = FALSE", {}, False),
]

RANGES_AND_SETS: Rows = [
    ("a BETWEEN 1 AND 5", {"a": "1"}, True),
    ("a BETWEEN 1 AND 5", {"a": "6"}, False),
    ("a BETWEEN 1 AND 5", {}, False),
    ("a BETWEEN 1.5 AND 5", {"a": "2"}, True),
    (
        "a BETWEEN 1.5 AND 5",
        {"a": "2.0"},
        False,
    ),  # each bound has a width of its own, and 2.0 is no 32-bit number
    ("a NOT BETWEEN 1 AND 5", {"a": "6"}, True),
    ("a NOT BETWEEN 1 AND 5", {"a": "5"}, False),
    ("a NOT BETWEEN 1 AND 5", {}, False),
    ("a BETWEEN -1 AND -5", {"a": "-2"}, False),  # not noticed: signs are no part of a literal
    ("a BETWEEN b AND c", {"a": "5", "b": "1", "c": "9"}, True),
    ("k IN ('a', 'it''s')", {"k": "it's"}, True),
    ("k NOT IN ('a', 'b')", {"k": "c"}, True),
    ("k NOT IN ('a', 'b')", {"k": "b"}, False),
    ("(k) IN ('a')", {"k": "a"}, True),
]

TEXTS: Rows = [
    ("n NOT CONTAINS 'mq'", {"n": "rocketmq"}, False),
    ("n NOT CONTAINS 'x'", {"n": "rocketmq"}, True),
    ("n CONTAINS 'mq'", {}, False),
    ("n NOT CONTAINS 'mq'", {}, False),
    ("n STARTSWITH 'ro'", {"n": "rocketmq"}, True),
    ("n STARTSWITH 'mq'", {"n": "rocketmq"}, False),
    ("n NOT STARTSWITH 'mq'", {"n": "rocketmq"}, True),
    ("n ENDSWITH 'mq'", {"n": "rocketmq"}, True),
    ("n NOT ENDSWITH 'mq'", {"n": "rocketmq"}, False),
    ("n NOT ENDSWITH 'mq'", {}, False),
    ("n STARTSWITH ''", {"n": "x"}, False),
    ("'abc' CONTAINS 'b'", {}, True),
    ("5 CONTAINS '5'", {}, False),
    ("5 NOT CONTAINS '5'", {}, False),
    ("NULL CONTAINS 'x'", {}, False),
    ("n CONTAINS '索具'", {"n": "Tauwerk 索具"}, True),
    ("n CONTAINS 'x' CONTAINS 'y'", {"n": "xy"}, False),
    ("s = 'Grüße'", {"s": "Grüße"}, True),
]

PRECEDENCE: Rows = [
    ("a = 1 OR a = 2 AND b = 1", {"a": "1"}, True),
    ("(a = 1 OR a = 2) AND b = 1", {"a": "1"}, False),
    ("a > 1 = TRUE", {"a": "2"}, True),
    ("not a is null", {"a": "x"}, False),  # (NOT a) IS NULL
    ("a = 1 -- and b = 2\n OR b = 3", {"b": "3"}, True),
    ("a = 1 /* one * two **/ AND b = 2", {"a": "1", "b": "2"}, True),
    ("$a_1 = 'x'", {"$a_1": "x"}, True),
    ("Name = 'x'", {"name": "x"}, False),  # names keep their case, keywords do not
]

ALL_ROWS = [
    *EXAMPLES, *THREE_VALUES, *NULL_AND_EQUAL, *NUMBERS, *ABORTS, *TRUTHS, *RANGES_AND_SETS, *TEXTS, *PRECEDENCE
]  # fmt: skip

TRAILING = [
    ("a = 5 garbage", "a = 5", "garbage where a comparison, AND, OR or the end is expected (at character 7"),
    ("a + 1 = 6", "a", "there is no arithmetic (at character 3"),
    ("s LIKE 'h%'", "s", "for LIKE there are CONTAINS, STARTSWITH and ENDSWITH"),
    ("a = 05", "a = 0", "a number has no leading zeros (at character 6"),
    ("a = 0x1F", "a = 0", "x1F where"),
    ("a = 0L", "a = 0", "L where"),
    ("a = 5)", "a = 5", ") where"),
]

REFUSED = [
    ("", "the end where a property, a literal, NOT or ( is expected (at character 1)"),
    ("  ", "the end where"),
    ("a != 5", "'!' starts no token; not equal is written <> (at character 3"),
    ("a # 5", "'#' starts no token"),
    ("a = 5;", "';' starts no token"),
    ('a = "x"', "strings stand in single quotes"),
    ("a.b = 5", "names have no dots"),
    ("a = 5 /* on and on", "a comment that does not end"),
    ("a = 'x", "its closing quote is missing (at character 5"),
    ("a * 5 = 3", "'*' starts no token"),
    ("*", "'*' starts no token"),
    ("a BETWEEN 5 AND 1", "the first bound of BETWEEN is greater"),
    ("a BETWEEN 5 AND 1.5", "the first bound of BETWEEN is greater"),
    ("a BETWEEN NULL AND 1", "compares numbers and properties"),
    ("a BETWEEN 'a' AND 'b'", "compares numbers and properties"),
    ("a BETWEEN 1 OR 5", "OR where AND is expected"),
    ("x > 'a'", "compares numbers and properties, and nothing else (at character 3"),
    ("x > TRUE", "compares numbers"),
    ("x > NULL", "compares numbers"),
    ("(a > 3) > 2", "compares numbers"),
    ("x = NULL", "ask for IS NULL or IS NOT NULL"),
    ("NULL <> x", "ask for IS NULL or IS NOT NULL"),
    ("TRUE = 5", "a truth value can be compared with no number and no string"),
    ("TRUE = 'x'", "a truth value"),
    ("5", "a value where a condition is expected: compare it with something (at character 1)"),
    ("'x'", "a value where a condition"),
    ("-a", "a value where a condition"),
    ("a = 5 AND 5", "a value where a condition is expected: compare it with something (at character 11"),
    ("a = 5 AND", "the end where a property"),
    ("NOT 5", "a value where a condition"),
    ("5 IN ('5')", "IN wants a property on its left (at character 3"),
    ("a IN ('x') IN ('y')", "IN wants a property"),
    ("a IN (5)", "5 where a string in single quotes is expected"),
    ("a IN ()", ") where a string"),
    ("a IN 'x'", "'x' where ( is expected"),
    ("a IN ('x'", "the end where ) is expected"),
    ("a IN (b)", "b where a string"),
    ("a CONTAINS b", "b where a string"),
    ("a = 5 NOT b", "b where BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH is expected behind NOT"),
    ("a IS 5", "5 where NULL is expected"),
    ("(a = 5", "the end where ) is expected (at character 7"),
    ("a = ", "the end where a property"),
    ("a = = 5", "= where a property"),
    ("AND", "AND where a property"),
    ("a = 9223372036854775808", "has more than 64 bits"),
    ("a = " + "9" * 100, "has more than 64 bits"),
    ("a = 0.0", "0.0 is none of the doubles above zero"),
    ("a = 1E400", "1E400 is none of the doubles"),
    ("a = 1E-400", "is none of the doubles"),
    ("a = '\ud800'", "half of a surrogate pair"),
    ("a" * 256 + " = 5", "a name of 256 characters; at most 255"),
    ("a = 1 -- and no more", None),
    ("a = - -5", None),
    ("a = 'x' or\n\tb\r\n= 'y'", None),
    ("NOT NOT NOT a", None),
    ("a = 5.e2", None),
]
