# SPDX-License-Identifier: Apache-2.0
"""The checks of check_cubins.py find what they look for."""
import types
import unittest

import check_cubins
from sass import Program

# A key loop as ptxas writes it: the rare part, with a call, lies behind the end; leaving looks like a call.
LISTING = """
.text.kernel:
        /*0000*/                   STL [R1], R2 ;
.L_x_0:
        /*0010*/                   UBLKCP [UR4], [UR6] ;
        /*0020*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/               @P0 BRA `(.L_x_2) ;
.L_x_1:
        /*0040*/               @P1 CALL.REL.NOINC `(.L_x_3) ;
        /*0048*/                   BRA `(.L_x_0) ;
.L_x_3:
        /*0050*/                   LDL R2, [R1] ;
        /*0060*/                   CALL.REL.NOINC `($after) ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   CALL.REL.NOINC `($inside) ;
        /*0090*/                   {rare} ;
        /*00a0*/                   BRA `(.L_x_1) ;
$inside:
        /*00b0*/                   {inside} ;
        /*00c0*/                   RET.REL.NODEC R2 `(kernel) ;
$after:
        /*00d0*/                   LDL R3, [R1] ;
        /*00e0*/                   RET.REL.NODEC R2 `(kernel) ;
"""


def code(target=90, rare="NOP", inside="NOP", old="", new="", name="sparse_mla_decode_fp8_512_64_qbf16_c1",
         exactly=True):
    listing = LISTING.replace("{rare}", rare).replace("{inside}", inside).replace(old, new)
    return list(check_cubins.check_code(Program(listing), target, name, exactly))


def cubin(**changes):
    return types.SimpleNamespace(**{"registers": 128, "local": 0, "shared": 100, "code": 1000, "calls_driver": False,
                                    **changes})


class Code(unittest.TestCase):
    def test_local_memory_outside_the_loop_is_fine(self):
        self.assertEqual(code(), [])

    def test_local_memory_in_the_loop(self):
        self.assertIn("LDL", code(rare="LDL.LU R2, [R1]")[0])
        self.assertIn("STL", code(inside="STL [R1], R2")[0])
        self.assertIn("STL", code(inside="@P0 STL.64 [R1], R2")[0])

    def test_local_memory_is_counted_alone_with_another_compiler(self):
        self.assertEqual(code(rare="LDL.LU R2, [R1]", exactly=False), [])
        self.assertEqual(code(name="sparse_mla_merge", exactly=False), [])

    def test_local_memory_anywhere_in_a_tool(self):
        def tool(listing):
            return list(check_cubins.check_code(Program(listing), 90, "sparse_mla_merge", True))
        self.assertIn("LDL, STL", tool(LISTING)[0])
        self.assertEqual(tool(LISTING.replace("STL", "ST").replace("LDL", "LD")), [])

    def test_a_loop_must_be_there_with_its_copies(self):
        self.assertEqual(code(old="HMMA", new="FFMA"), ["no loop has HMMA"])
        self.assertEqual(code(old="BRA `(.L_x_0)", new="NOP"), ["no loop has HMMA"])
        self.assertEqual(code(target=80), ["the key loop has no LDGSTS"])
        self.assertEqual(code(target=80, old="UBLKCP", new="LDGSTS.E"), [])
        q8 = "sparse_mla_decode_q8_512_64_qf32_c1"
        self.assertEqual(code(name=q8), ["the key loop has no LDGSTS"])
        self.assertEqual(code(name=q8, old="UBLKCP", new="LDGSTS.E"), [])


class Numbers(unittest.TestCase):
    def problems(self, target=120, threads=256, blocks=1, **changes):
        return len(list(check_cubins.check_cubin(cubin(**changes), target, threads, blocks)))

    def test_limits(self):
        self.assertEqual(self.problems(registers=255, local=64, shared=101376), 0)
        self.assertEqual(self.problems(registers=0), 1)
        self.assertEqual(self.problems(registers=129, blocks=2), 1)
        self.assertEqual(self.problems(local=65), 1)
        self.assertEqual(self.problems(shared=101377), 1)
        self.assertEqual(self.problems(target=90, shared=232448), 0)
        self.assertEqual(self.problems(calls_driver=True), 1)

    def against_table(self, exactly, **changes):
        row = {"registers": "128", "local": "0", "shared": "100", "code": "1000"}
        return len(list(check_cubins.check_row(cubin(**changes), row, exactly)))

    def test_table(self):
        self.assertEqual(self.against_table(True), 0)
        self.assertEqual(self.against_table(True, registers=127), 0)
        self.assertEqual(self.against_table(True, registers=126), 1)
        self.assertEqual(self.against_table(True, registers=130), 1)
        self.assertEqual(self.against_table(False, registers=144, local=16, shared=99), 0)
        self.assertEqual(self.against_table(False, registers=145, local=17, shared=101, code=1101), 4)
        self.assertEqual(self.against_table(True, code=1100), 0)


if __name__ == "__main__":
    unittest.main()
