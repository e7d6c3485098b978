"""Scrooge's top level: lanes, trees, exponents, ETU, VSU and dividers, with their control.

It computes one head of one step. Rows of keys arrive in the order of Algorithm 1, important tokens
first, a wave of lanes per cycle; it takes no more once the ETU stops, and says which tokens' values
the VSU keeps. Their rows arrive next, in the same order, and the output leaves a lane's part at a
time.

    keys     lanes -> tree -> logits -> exponents -> weights -> Max & Sum -> ETU; weights -> VSU
    scores   weights that the VSU kept -> dividers -> scores
    values   lanes, each with the score of its token, sum in their registers
    output   lanes add those of other lanes, half as many in each cycle

Choices where the paper is silent:

* Weights are relative to the largest logit of the important tokens (see `max_and_sum`), so logits
  wait in the attention buffer until that is known. The largest weight, Max, is 1.
* There is one VSU, as Table III counts one adder, comparator and multiplier: it takes a token per
  cycle. The memory delivers 128 B, a lane's part of a token, per cycle, so the VSU keeps up. It
  does not see important tokens, whose values are all kept (line 2).
* Waves that entered after the one that stops are dropped: what they wrote is never read.
* Only kept weights are divided: the others have no use.
* Logits, weights and scores are in three memories, which are the attention buffer's part of Table
  III's SRAM. Addresses of rows, and the local and the global buffer, belong to the memory's side.

Source   Byeon et al., "Scrooge: Accelerating Attention Inference in LLMs via Early Termination
         Mechanism", Algorithm 1, section V, Fig. 4 and 5, Table II.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal

from suffice_hw.rtl import fp16
from suffice_hw.rtl.lane_units import EXPONENT_CYCLES, MINUS_INFINITY
from suffice_hw.rtl.scrooge_units import ETU_CYCLES, PLACE_BITS
from suffice_hw.rtl.top_level_units import Size, Units
from suffice_hw.rtl.unit import Circuit

ONE = 0x3C00


class _TopLevel:
    """Builds a top level; each method adds a part of it."""

    def __init__(
        self, module: Any, inputs: dict[str, Any], outputs: dict[str, Any], size: Size, units: Units
    ) -> None:
        self.module, self.inputs, self.outputs = module, inputs, outputs
        self.size, self.units = size, units
        self.start, self.spread = inputs["start"], inputs["spread"]
        self.keys, self.scores, self.values, self.output = (Signal() for _ in range(4))
        self.stop, self.scored, self.summed, self.last = (Signal() for _ in range(4))
        self.taken = Signal()
        self.score = [Signal(16) for _ in range(size.lanes)]
        self.decided, self.turn = Signal(PLACE_BITS), Signal(size.levels + 1)
        self.per_wave = self.named(Const(size.lanes) >> self.spread, size.levels + 1)
        phases = (self.start, self.stop, self.scored, self.summed, self.last)
        flags = (self.keys, self.scores, self.values, self.output)
        self.drive(outputs["phase"], Cat(*flags))
        for i, phase in enumerate(flags):
            self.next(phase, (phase | phases[i]) & ~phases[i + 1])
        self.add_lanes()
        self.add_weights()
        self.add_vsu()
        self.add_values()

    def named(self, value: Any, width: int | None = None) -> Any:
        return fp16.named(self.module, value, width)

    def drive(self, signal: Any, value: Any) -> None:
        own = Module()
        own.d.comb += signal.eq(value)
        self.module.submodules += own

    def next(self, signal: Any, value: Any) -> None:
        own = Module()
        own.d.sync += signal.eq(value)
        self.module.submodules += own

    def count(self, step: Any, counter: Any = None) -> Any:
        """Return a counter that grows by `step` in each cycle, from 0 at the start of a head."""
        counter = Signal(PLACE_BITS) if counter is None else counter
        self.next(counter, Mux(self.start, 0, counter + step))
        return counter

    def after(self, valid: Any, cycles: int, phase: Any = None) -> Any:
        """Return whether something was valid some cycles ago, as long as the phase lasts."""
        phase = self.keys if phase is None else phase
        for _ in range(cycles):
            valid = fp16.registered(self.module, self.named(valid & phase))
        return self.named(valid & phase)

    def wave(self, done: Any) -> Any:
        """Return the tokens of the wave after `done` tokens; no wave has both kinds of tokens."""
        important, length = self.inputs["important"], self.inputs["length"]
        rest = self.named(Mux(done < important, important, length) - done, PLACE_BITS)
        return self.named(Mux(rest < self.per_wave, rest, self.per_wave), self.size.levels + 1)

    def tokens(self, valid: Any, done: Any = None) -> tuple[Any, Any]:
        """Return the tokens of the valid waves so far, and of the next one."""
        done = Signal(PLACE_BITS) if done is None else done
        wave = self.wave(done)
        return self.count(Mux(valid, wave, 0), done), wave

    def write(self, memory: str, place: Any, lanes: Any, word: Any) -> None:
        self.drive(self.outputs[f"{memory}_to"], place)
        self.drive(self.outputs[f"{memory}_write"], lanes)
        self.drive(self.outputs[f"{memory}_word"], word)

    def words(self, port: str) -> list[Any]:
        return [self.inputs[port].word_select(i, 16) for i in range(self.size.lanes)]

    def part_of_query(self, lane: int) -> Any:
        """Return the part that a lane multiplies: its place in the token."""
        bits = self.size.width * 16
        parts = [self.inputs["query"][i * bits :][:bits] for i in range(self.size.parts)]
        found = parts[0]
        for spread in range(1, self.size.parts.bit_length()):
            if place := lane & (1 << spread) - 1:
                found = Mux(self.spread == spread, parts[place], found)
        return found

    def add_lanes(self) -> None:
        """Rows times the query, or times scores; sums of lanes; logits, and when they are valid."""
        size, values = self.size, self.named(~self.keys)
        fed, _ = self.tokens(self.named(self.taken & self.keys))
        self.more_keys = self.named(self.keys & (fed != self.inputs["length"]))
        totals: list[Any] = []
        sums: list[list[Any]] = []
        for lane in reversed(range(size.lanes)):
            start = lane * size.width
            row = [self.inputs["rows"].word_select(start + i, 16) for i in range(size.width)]
            query = self.named(self.part_of_query(lane))
            query = [query.word_select(i, 16) for i in range(size.width)]
            ports = (row, query, self.score[lane], values, self.scores)
            total, own = self.units.lane(lane, *ports, *self.other(lane, sums))
            totals, sums = [total, *totals], [own, *sums]
        self.sums = sums[: size.parts]
        self.logits = self.units.tree(totals, self.spread, self.inputs["scale"])
        summed = valid = self.after(self.taken, 1 + size.lane_levels)
        for level in range(1, size.levels + 1):
            summed = self.after(summed, 1)
            valid = Mux(self.spread == level, summed, valid)
        self.logits_valid = self.after(self.named(valid), 1)

    def other(self, lane: int, above: list[list[Any]]) -> tuple[list[Any], Any]:
        """Return the registers that a lane adds in the output's turns, and whether it does.

        In each turn the lower half of the lanes adds the upper half, until there is one per part.
        """
        size, found = self.size, [Const(0, 16)] * self.size.width
        folds: Any = Const(0, 1)
        for turn in range(size.levels):
            distance = size.lanes >> turn + 1
            if lane < distance:
                mine = self.named(self.turn == turn)
                pairs = zip(above[distance - 1], found, strict=True)
                found = [Mux(mine, a, b) for a, b in pairs] if turn else above[distance - 1]
                folds = folds | (mine & (self.spread < size.levels - turn))
        return [self.named(each) for each in found], self.named(folds & self.output)

    def add_weights(self) -> None:
        """Logits, their offset, exponents, sums, and the ETU's decision."""
        size, outside = self.size, Const(MINUS_INFINITY, 16)
        valid, important = self.logits_valid, self.inputs["important"]
        done, wave = self.tokens(valid)
        logits = [self.named(Mux(wave > i, x, outside)) for i, x in enumerate(self.logits)]
        written = self.count(valid)
        self.write("logits", written, valid.replicate(size.lanes), Cat(*logits))
        first = self.named(valid & (done < important))
        last = self.after(self.named(first & (done + wave == important)), size.levels)
        ready, offset = Signal(), Signal(16)
        self.next(ready, ~self.start & (ready | last))
        read = Signal(PLACE_BITS)
        going = self.named(self.keys & ready & (read != written))
        self.drive(self.outputs["logits_from"], self.count(going, read))
        weights = [
            self.units.exponent(i, x, offset) for i, x in enumerate(self.words("logits_data"))
        ]
        valid = self.after(going, 1 + EXPONENT_CYCLES)
        done, _ = self.tokens(valid)
        self.weights, self.always = weights, self.named(valid & (done < important))
        self.weighed = self.count(valid)
        self.write("weights", self.weighed, valid.replicate(size.lanes), Cat(*weights))
        some = [self.named(Mux(first, x, outside)) for x in logits]
        peak, total = self.units.max_and_sum(some, weights)
        larger = Mux(fp16.key(peak) > fp16.key(offset), peak, offset)
        self.next(offset, Mux(self.start, outside, larger))
        self.add_decision(self.after(valid, size.levels), total)

    def add_decision(self, valid: Any, total: Any) -> None:
        """Sums of all waves, and whether one of them was the last."""
        known, length = Signal(16), self.inputs["length"]
        grown = Mux(valid, fp16.add(self.module, known, total), known)
        self.next(known, Mux(self.start, 0, grown))
        n, _ = self.tokens(valid)
        others = fp16.whole(self.module, self.named(n - 1, PLACE_BITS))
        unknown = fp16.whole(self.module, self.named(length - n, PLACE_BITS))
        ports = (known, Const(ONE, 16), others, unknown, self.inputs["key_share"])
        enough, of = self.units.etu(*ports)
        result = self.after(valid, 1 + ETU_CYCLES)
        decided, wave = self.tokens(result, self.decided)
        enough = self.named(enough & (decided >= self.inputs["important"]))
        self.drive(self.stop, result & (enough | (decided + wave == length)))
        self.continued = self.count(self.named(result & ~self.stop))
        self.total = Signal(16)
        self.next(self.total, Mux(self.stop, of, self.total))
        self.drive(self.outputs["known"], decided)

    def add_vsu(self) -> None:
        """One token per cycle of the waves that are known for sure; important waves are skipped."""
        ready, slot = Signal(), Signal(self.size.levels)
        moved = Signal()
        done, wave = self.tokens(moved)
        important = self.named(done < self.inputs["important"])
        self.drive(moved, ready & (important | (slot + 1 == wave)))
        self.next(slot, Mux(ready & ~moved, slot + 1, 0))
        waves = Signal(PLACE_BITS)
        following = self.named(waves + moved, PLACE_BITS)
        self.count(moved, waves)
        self.drive(self.outputs["weights_from"], following)
        active = self.keys | self.scores
        known = (following < self.weighed) & (following <= self.continued)
        self.next(ready, active & ~self.start & known)
        weight = self.named(self.inputs["weights_data"].word_select(slot, 16))
        weight = self.named(Mux(ready & ~important, weight, MINUS_INFINITY), 16)
        share = self.inputs["value_share"]
        keep, place = self.units.vsu(weight, Const(ONE, 16), share, self.start)
        self.kept = self.named(self.inputs["important"] + place, PLACE_BITS)
        self.kept_weight = fp16.registered(self.module, weight)
        self.drive(self.outputs["keep"], keep)
        position = self.named(done + slot, PLACE_BITS)
        self.drive(self.outputs["position"], fp16.registered(self.module, position))
        self.drive(self.outputs["kept"], self.kept)
        self.keep = keep
        seen = self.named(self.scores & (done == self.decided))
        self.selected = fp16.registered(self.module, seen)

    def add_values(self) -> None:
        """Scores of kept weights, then rows of their values, then the output."""
        size, outputs = self.size, self.outputs
        # whole waves of a number of tokens may be more than the largest number
        asked, scored, used = (Signal(PLACE_BITS + 1) for _ in range(3))
        asking = self.named(self.scores & self.selected & (asked < self.kept))
        self.count(Mux(asking, self.per_wave, 0), asked)
        quotients = [
            self.units.divide(i, x, self.total) for i, x in enumerate(self.words("scores_data"))
        ]
        divided = self.after(asking, 1 + fp16.DIVIDE_CYCLES, self.scores)
        self.count(Mux(divided, self.per_wave, 0), scored)
        back = self.count(divided)
        self.drive(self.scored, divided & (scored + self.per_wave >= self.kept))
        entry = self.named(self.kept - 1, PLACE_BITS)
        slot = self.named(entry & (self.per_wave - 1), size.levels)
        one = self.named((self.keep << slot)[: size.lanes], size.lanes)
        word_of = self.named(entry >> (size.levels - self.spread)[:3], PLACE_BITS)
        place = Mux(divided, back, Mux(self.always, self.weighed, word_of))
        data = Mux(self.always, Cat(*self.weights), self.kept_weight.replicate(size.lanes))
        data = Mux(divided, Cat(*quotients), data)
        lanes = one | (divided | self.always).replicate(size.lanes)
        self.write("scores", self.named(place, PLACE_BITS), lanes, data)
        ready, word = Signal(), Signal(PLACE_BITS)
        self.next(ready, self.values)
        more = self.named(self.values & ready & (used < self.kept))
        self.drive(outputs["take"], self.more_keys | more)
        self.drive(self.taken, self.inputs["valid"] & (self.more_keys | more))
        taken = self.named(self.taken & more)
        self.count(Mux(taken, self.per_wave, 0), used)
        self.count(taken, word)
        reads = (self.named(word + taken, PLACE_BITS), self.count(asking))
        self.drive(outputs["scores_from"], Mux(self.values, *reads))
        rest = self.named(self.kept - used, PLACE_BITS)
        for lane, score in enumerate(self.score):
            token = self.named(Const(lane, size.levels) >> self.spread, size.levels)
            held = self.inputs["scores_data"].word_select(token, 16)
            self.drive(score, Mux(taken & (token < rest), held, 0))
        last = self.named(taken & (used + self.per_wave >= self.kept))
        self.drive(self.summed, fp16.registered(self.module, last))
        self.add_output()

    def add_output(self) -> None:
        """Turns in which lanes are added, then the parts of the output."""
        size = self.size
        self.next(self.turn, Mux(self.output, self.turn + 1, 0))
        turns = self.named(size.levels - self.spread, size.levels)
        part = self.named(self.turn - turns, size.levels)
        valid = self.named(self.output & (self.turn >= turns))
        self.drive(self.last, valid & (part + 1 == (1 << self.spread)))
        parts = [self.named(Cat(*own)) for own in self.sums]
        self.drive(self.outputs["y"], Array(parts)[part[: size.parts.bit_length() - 1]])
        self.drive(self.outputs["y_valid"], valid)
        self.drive(self.outputs["done"], self.last)


def add_top_level(
    module: Any, inputs: dict[str, Any], outputs: dict[str, Any], size: Size, units: Units
) -> None:
    """Add the top level to a module, with units of its own."""
    _TopLevel(module, inputs, outputs, size, units)


def top_level(size: Size | None = None) -> Circuit:
    """Return the top level with all units; memories are outside."""
    size = size or Size()

    def build(module: Any, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
        add_top_level(module, inputs, outputs, size, Units(module))

    what = f"Scrooge's top level with {size.lanes} lanes of {size.width} multipliers"
    return Circuit(f"top_level_{size.lanes}x{size.width}", what, size.inputs, size.outputs, build)
