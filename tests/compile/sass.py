# SPDX-License-Identifier: Apache-2.0
"""The control flow of a kernel as `nvdisasm -c` lists it, and the loops in it."""
import re

LABEL = re.compile(r"^([.$\w]+):$")
INSTRUCTION = re.compile(r"^/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
MENTIONED = re.compile(r"`\(([^)]+)\)")


class Instruction:
    def __init__(self, guard, opcode, operands):
        self.guard = guard
        self.opcode = opcode.split(".")[0]
        self.labels = MENTIONED.findall(operands)
        # ptxas also calls a place within the function, to leave a loop; nothing returns from there.
        self.is_call = self.opcode == "CALL" and not any(label.startswith(".L") for label in self.labels)
        jumps = self.opcode in ("BRA", "JMP", "CALL") and not self.is_call
        # BRA.U and BRA.DIV have their condition among the operands.
        self.ends = not guard and (self.opcode in ("EXIT", "RET") or jumps and operands.startswith("`("))


def parse(listing):
    """The instructions, and label -> index of the instruction behind it."""
    instructions, labels = [], {}
    for line in listing.splitlines():
        line = line.strip()
        if match := LABEL.match(line):
            labels[match[1]] = len(instructions)
        elif match := INSTRUCTION.match(line):
            instructions.append(Instruction(*match.groups()))
    return instructions, labels


class Program:
    def __init__(self, listing):
        self.instructions, self.labels = parse(listing)
        self.opcodes = {instruction.opcode for instruction in self.instructions}

    def callees(self, index):
        instruction = self.instructions[index]
        return [self.labels[name] for name in instruction.labels] if instruction.is_call else []

    def successors(self, index):
        """A call is taken to return to the instruction behind it. Whatever else names a label may go there."""
        instruction = self.instructions[index]
        if instruction.opcode in ("BRX", "JMX"):
            raise ValueError(f"an indirect jump: {instruction.opcode}")
        following = [] if instruction.ends else [index + 1]
        if instruction.opcode != "RET" and not instruction.is_call:
            following += [self.labels[name] for name in instruction.labels if name.startswith(".L")]
        return [after for after in following if after < len(self.instructions)]

    def reachable(self, starts, step):
        seen, todo = set(starts), list(starts)
        while todo:
            for after in step(todo.pop()):
                if after not in seen:
                    seen.add(after)
                    todo.append(after)
        return seen

    def loops_with(self, opcode):
        """The instructions that can run between one execution of `opcode` and its next, called functions included;
        empty when none can run twice."""
        before = [[] for _ in self.instructions]
        for index in range(len(self.instructions)):
            for after in self.successors(index):
                before[after].append(index)
        loops, done = set(), set()
        for index, instruction in enumerate(self.instructions):
            if instruction.opcode != opcode or index in done:
                continue
            ahead = self.reachable(self.successors(index), self.successors)
            loop = ahead & self.reachable(before[index], before.__getitem__)
            done |= loop | {index}
            loops |= loop
        called = self.reachable(loops, lambda i: self.callees(i) + (self.successors(i) if i not in loops else []))
        return loops | called
