"""A synthetic chest drawn from formulas: each part is a soft mask, and densities add up along the
beam.

Body coordinates are u, to the patient's left, and v, downwards; 0 is the middle of the chest and 1
about the edge of the image. Findings are drawn as what they are, from barely visible to severe;
most take air from the lungs. Random numbers are drawn in one order whatever the findings, so that a
finding changes nothing but its own place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

# Float32 (images, height, width), or (images, 1, 1) for one number an image.
Grey = NDArray[np.floating]

# Density of the parts, in grey of a standard exposure.
TISSUE, AIR, SPINE, HEART, ABDOMEN = 0.66, 0.50, 0.09, 0.08, 0.16
RIB = 0.08
CLAVICLE = 0.11
VESSEL = 0.11
BREAST = 0.07
STOMACH = 0.25
TEXTURE = 0.03
# The share of a lung's air that a finding of full severity takes.
HAZE, FOCUS, PLATE, FLUID = 0.60, 0.80, 0.80, 0.95


@dataclass(frozen=True)
class AnatomyChance:
    """One random number an image, shaped to be spread over its pixels."""

    rng: np.random.Generator
    images: int

    def between(self, low: float, high: float) -> Grey:
        return low + (high - low) * self.rng.random((self.images, 1, 1), dtype=np.float32)

    def around(self, mean: float, spread: float) -> Grey:
        """Bell-shaped, cut at two and a half spreads."""
        bell = self.rng.standard_normal((self.images, 1, 1), dtype=np.float32)
        return mean + spread * bell.clip(-2.5, 2.5)

    def sign(self) -> Grey:
        return np.where(self.between(0, 1) < 0.5, np.float32(-1), np.float32(1))

    def clouds(self, size: int, grid: int) -> Grey:
        """Smooth noise of about unit spread: a coarse grid of numbers, blown up."""
        coarse = self.rng.standard_normal((self.images, grid, grid), dtype=np.float32)
        spread = smooth_upsampling(size, grid)
        return np.asarray(spread @ coarse @ spread.T)


def smooth_upsampling(size: int, grid: int) -> Grey:
    """(size, grid) matrix that interpolates smoothly between grid points; rows have unit length to
    keep the spread.
    """
    position = np.linspace(0, grid - 1, size, dtype=np.float32)[:, None]
    weights = soft_bump((position - np.arange(grid, dtype=np.float32)) / 2)
    return np.asarray(weights / np.sqrt((weights**2).sum(axis=1, keepdims=True)))


def soft_edge(distance: Grey, width: float) -> Grey:
    """0 outside, 1 inside, a smooth step of this width between; distance is positive inside."""
    step: Grey = np.clip(distance * (1 / width) + 0.5, 0, 1)
    return step * step * (3 - 2 * step)


def soft_bump(distance: Grey) -> Grey:
    """1 in the middle, smoothly down to 0 at distance 1."""
    height: Grey = (1 - distance * distance).clip(0, None)
    return height * height


def soft_patch(u: Grey, v: Grey, width: Grey | float, height: Grey | float) -> Grey:
    """A smooth round patch around the origin."""
    return soft_bump(np.sqrt((u / width) ** 2 + (v / height) ** 2))


@dataclass(frozen=True)
class Body:
    """Where each pixel lies in the body, and the smooth noise of this body's tissue."""

    # from the middle line, positive on the patient's left, which is on the right of the image
    u: Grey
    v: Grey  # downwards
    across: Grey  # |u|
    left: Grey  # 1 on the left, 0 on the right, blended in the middle
    sharp: float  # the narrowest edge that this image size can show
    coarse: Grey
    fine: Grey

    def sides(self, right: Grey, left: Grey) -> Grey:
        return right + (left - right) * self.left


def place_body(size: int, chance: AnatomyChance) -> Body:
    """A patient who stands a little off the middle, a little turned, nearer or farther."""
    line = (np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1
    x = line[None, None, :]
    y = line[None, :, None]
    turn = chance.around(0, 0.03)
    zoom = chance.around(1.0, 0.05)
    u = zoom * (x + turn * y) + chance.around(0, 0.04)
    v = zoom * (y - turn * x) + chance.around(0, 0.05)
    sharp = max(0.035, 3.0 / size)
    return Body(
        u, v, np.abs(u), soft_edge(u, 0.2), sharp, chance.clouds(size, 5), chance.clouds(size, 16)
    )


def trunk(at: Body, chance: AnatomyChance) -> Grey:
    """Soft tissue: neck, sloping shoulders, flanks; thinner towards the outline."""
    neck = chance.around(0.26, 0.02)
    flank = chance.around(0.98, 0.06)
    shoulder = neck + (flank + 0.25 - neck) * soft_edge(at.v + 0.80 - 0.12 * at.across, 0.42)
    half = shoulder - 0.24 * soft_edge(at.v + 0.25, 0.7)
    inside = half - at.across
    return soft_edge(inside, at.sharp) * (0.55 + 0.45 * soft_edge(inside - 0.15, 0.5))


def diaphragm(at: Body, chance: AnatomyChance, lifted: Grey, lifted_side: Grey) -> Grey:
    """How far each pixel is above the diaphragm: a dome a side, the right one higher, both falling
    to the angles.
    """
    level = chance.around(0.50, 0.05)
    right = level - chance.around(0.03, 0.015)
    left = level + chance.around(0.03, 0.015)
    right = right - lifted * (lifted_side < 0)
    left = left - lifted * (lifted_side > 0)
    dome = chance.around(1.0, 0.15) * (at.across - 0.31) ** 2
    return at.sides(right, left) + dome - at.v


def lungs(at: Body, above: Grey, chance: AnatomyChance) -> Grey:
    """How much lung the beam meets: two leaning ovals, cut by the diaphragm."""
    width = chance.around(0.345, 0.02)
    height = chance.around(0.98, 0.04)
    u = at.across - chance.around(0.40, 0.012)
    v = at.v - 0.22
    inside = 1 - np.sqrt(((u - 0.20 * v) / width) ** 2 + (v / height) ** 2)
    return soft_edge(inside * width, 2 * at.sharp) * soft_edge(above, at.sharp)


def heart(at: Body, enlarged: Grey, chance: AnatomyChance) -> Grey:
    """An oval whose tip points down and to the left; an enlarged one grows mostly that way."""
    grown = 1 + enlarged
    long = chance.around(0.36, 0.025) * grown
    short = chance.around(0.255, 0.018) * grown
    u = at.u - chance.around(0.10, 0.015) - 0.12 * enlarged
    v = at.v - chance.around(0.30, 0.025) + 0.04 * enlarged
    along = 0.75 * u + 0.66 * v
    beside = 0.66 * u - 0.75 * v
    return soft_edge(
        (1 - np.sqrt((along / long) ** 2 + (beside / short) ** 2)) * short, 1.6 * at.sharp
    )


def great_vessels(at: Body, chance: AnatomyChance) -> Grey:
    """The great vessels in the middle, wider above the heart, with the aortic knob on the left."""
    half = chance.around(0.13, 0.012) + 0.12 * soft_bump((at.v - 0.05) / 0.5)
    knob = soft_patch(at.u - 0.12, at.v + 0.24, 0.13, chance.around(0.20, 0.02))
    return np.maximum(soft_edge(half - at.across, 0.10), soft_edge(knob - 0.3, 0.6))


def spine(at: Body) -> Grey:
    """Vertebrae in the middle, with the dark windpipe over them at the neck."""
    segment = at.v / 0.115
    column = soft_edge(0.09 - at.across, 0.07) * (
        0.7 + 0.3 * soft_bump((segment - np.rint(segment)) * 2)
    )
    return column - 1.2 * soft_bump(at.u / 0.07) * soft_edge(-at.v - 0.1, 0.3)


def ribs(at: Body, chance: AnatomyChance) -> Grey:
    """Bands that arch from the spine outwards, and fainter ones that fall from the flank
    inwards.
    """
    spacing = chance.around(0.165, 0.008)
    arch = chance.around(0.75, 0.1) * (at.across - 0.22) ** 2
    back = (at.v - arch + chance.between(0, 0.16)) / spacing
    front = (at.v + 0.55 * at.across + chance.between(0, 0.16)) / (1.15 * spacing)
    cage = (
        soft_edge(0.82 - at.across + 0.1 * at.v, 0.12)
        * soft_edge(at.v + 0.85, 0.3)
        * soft_edge(0.75 - at.v, 0.3)
    )
    behind = soft_bump((back - np.rint(back)) * 3.2) * soft_edge(at.across - 0.06, 0.08)
    before = soft_bump((front - np.rint(front)) * 3.0) * soft_edge(at.across - 0.38, 0.3) * 0.55
    return (behind + before) * cage


def clavicles(at: Body, chance: AnatomyChance) -> Grey:
    """Two bars that rise slightly from the breastbone to the shoulders."""
    height = at.v + chance.around(0.60, 0.03) + chance.around(0.22, 0.05) * at.across
    return (
        soft_bump(height / 0.055)
        * soft_edge(at.across - 0.07, 0.06)
        * soft_edge(0.85 - at.across, 0.2)
    )


def lung_vessels(at: Body, chance: AnatomyChance) -> Grey:
    """Lung markings: winding lines where smooth noise crosses zero, and the hila, fading
    outwards.
    """
    hila = soft_patch(at.across - 0.21, at.v - chance.around(0.02, 0.02), 0.13, 0.22)
    reach = soft_patch(at.across - 0.15, at.v - 0.08, 0.75, 0.95)
    return chance.between(0.6, 1.3) * (0.8 * hila + reach * soft_bump(at.fine / 0.8))


def breasts(at: Body, chance: AnatomyChance) -> Grey:
    """Shadows over the lower lungs in half of the patients."""
    present = (chance.sign() + 1) * chance.between(0.2, 0.5)
    return present * soft_edge(
        1 - np.sqrt(((at.across - 0.42) / 0.40) ** 2 + ((at.v - 0.30) / 0.36) ** 2), 0.5
    )


def stomach(at: Body, chance: AnatomyChance) -> Grey:
    """Gas under the left dome, sometimes."""
    return chance.between(-0.6, 1).clip(0, None) * soft_patch(
        at.u - chance.around(0.34, 0.04), at.v - 0.76, 0.2, 0.14
    )


def edema_haze(at: Body, chance: AnatomyChance) -> Grey:
    """Edema: cloudy wings around both hila."""
    middle = chance.around(0.06, 0.03)
    width = chance.around(0.46, 0.03)
    height = chance.around(0.60, 0.05)
    return soft_patch(at.across - 0.24, at.v - middle, width, height) * (
        1 + 0.2 * at.coarse + 0.2 * at.fine
    )


def effusion_fluid(at: Body, amount: Grey, chance: AnatomyChance) -> Grey:
    """Pleural effusion: fills the angle between flank and diaphragm first; its surface climbs along
    the flank.
    """
    both = chance.between(0, 1) < 0.35
    side = chance.sign()
    height = at.sides(amount * (both | (side < 0)), amount * (both | (side > 0)))
    climb = (at.across / 0.80) ** 2
    surface = 0.75 - height * (0.36 + 0.33 * climb * climb * climb)
    return soft_edge(at.v - surface, 0.07) * (height > 0)


def consolidation_patch(at: Body, chance: AnatomyChance) -> Grey:
    """Consolidation: one patch with a ragged border anywhere in a lung."""
    u = at.u - chance.sign() * chance.between(0.28, 0.55)
    v = at.v - chance.between(-0.40, 0.40)
    radius = chance.between(0.16, 0.30)
    distance = np.sqrt(u * u + (v * chance.between(0.8, 1.25)) ** 2)
    return soft_edge(radius * (1 + 0.3 * at.coarse + 0.2 * at.fine) - distance, 0.2)


def atelectasis_plates(at: Body, side: Grey, chance: AnatomyChance) -> Grey:
    """Atelectasis: one to three thin bands across the lower lung of one side."""
    u = at.u * side - chance.around(0.44, 0.04)
    drawn = np.zeros_like(at.u)
    slope = chance.around(0, 0.25)
    level = chance.around(0.18, 0.1)
    for band in range(3):
        v = at.v - level - slope * u - 0.11 * band
        shown = chance.between(0, 1) < 1 - 0.4 * band
        drawn = drawn + shown * soft_bump(v / chance.between(0.045, 0.075)) * soft_bump(u / 0.3)
    return drawn.clip(0, 1)


def draw_chests(
    severity: NDArray[np.float32], size: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Draw an image for each row of severities: 0 is absent, 1 is severe, one column per finding.

    All else depends on `rng` alone: the same seed with and without a finding gives the same
    patient.
    """
    chance = AnatomyChance(rng, len(severity))
    collapse, edema, effusion, enlarged, dense = severity.T.astype(np.float32)[..., None, None]
    at = place_body(size, chance)
    side = chance.sign()
    u = at.u - 0.06 * side * collapse  # a collapsed lung pulls what lies in the middle to its side
    middle = replace(at, u=u, across=np.abs(u), left=soft_edge(u, 0.2))
    flesh = trunk(at, chance)
    above = diaphragm(at, chance, 0.16 * collapse, side)
    silhouette = heart(middle, 0.4 * enlarged, chance)
    great = great_vessels(middle, chance)
    markings = lung_vessels(middle, chance)
    # Some lung lies behind the heart.
    air = lungs(at, above, chance) * (1 - 0.85 * np.maximum(silhouette, great))
    air = air * (1 - HAZE * edema * edema_haze(at, chance)).clip(0, 1)
    air = air * (1 - FLUID * effusion_fluid(at, effusion, chance))
    air = air * (1 - FOCUS * dense * consolidation_patch(at, chance))
    air = air * (1 - PLATE * collapse * atelectasis_plates(at, side, chance))
    density = flesh * (
        TISSUE + HEART * silhouette + ABDOMEN * soft_edge(-above, 0.12) + SPINE * spine(middle)
    )
    density += (
        (VESSEL * markings - AIR) * air
        + BREAST * breasts(at, chance)
        - STOMACH * stomach(at, chance)
    )
    density += (
        flesh * (RIB * ribs(at, chance) + CLAVICLE * clavicles(at, chance)) + TEXTURE * at.coarse
    )
    return exposed_film(density, chance)


def exposed_film(density: Grey, chance: AnatomyChance) -> NDArray[np.uint8]:
    """The film: darker or brighter, flat or hard, with grain."""
    grey = chance.around(0.06, 0.03) + chance.around(0.95, 0.08) * density
    grey += chance.around(0.1, 0.25) * grey * (1 - grey)
    grey += chance.between(0.005, 0.02) * chance.rng.standard_normal(grey.shape, dtype=np.float32)
    return (grey.clip(0, 1) * 255 + 0.5).astype(np.uint8)
