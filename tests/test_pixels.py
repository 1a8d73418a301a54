"""One scale of grey levels at every bit depth, colours, and images that are not square."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from feddraw.data.dataset_by_name import open_dataset
from feddraw.data.image_cache import FilesToCache, file_stamp, prepare_images
from feddraw.data.image_facts import differences_in_words, facts_table, look_at
from feddraw.data.image_settings import ImagePreparation
from feddraw.data.imaging import BadImage, Recipe, decode, grey_levels, share_of_window
from feddraw.errors import UserError
from test_imaging import film, save_dicom

COLOURS = [(250, 10, 20), (30, 200, 40), (5, 60, 240)]


def portrait(height: int = 90, width: int = 60) -> NDArray[np.uint8]:
    """Stripes in red, green and blue."""
    image = np.zeros((height, width, 3), np.uint8)
    for stripe, colour in enumerate(COLOURS):
        image[stripe * height // 3 : (stripe + 1) * height // 3] = colour
    return image


def files(folder: Path, *names: str, **settings: object) -> FilesToCache:
    stamps = tuple(stamp for name in names if (stamp := file_stamp(folder / name)))
    return FilesToCache(folder, names, stamps, **settings)


# ------------------------------------------------------------------------------------- grey levels


def test_one_picture_in_8_bits_16_bits_and_dicom_gives_the_same_pixels(tmp_path: Path) -> None:
    grey = film().clip(40, 200)  # neither black nor white: nothing to stretch by
    Image.fromarray(grey).save(tmp_path / "8.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "16.png")
    twelve = np.rint(grey * (4095 / 255)).astype(np.uint16)
    save_dicom(tmp_path / "range.dcm", twelve)
    save_dicom(tmp_path / "window.dcm", twelve, window=(2048, 4096))
    save_dicom(tmp_path / "inverse.dcm", 4095 - twelve, "MONOCHROME1", window=(2048, 4096))
    rescaled = {"RescaleSlope": 2, "RescaleIntercept": -1000}
    save_dicom(tmp_path / "rescaled.dcm", twelve, **rescaled)
    for name in ("8.png", "16.png"):
        assert (decode(tmp_path / name) == grey).all()
    for name in ("range.dcm", "window.dcm", "inverse.dcm", "rescaled.dcm"):
        assert np.abs(decode(tmp_path / name).astype(int) - grey).max() <= 1, name


def test_a_dark_image_stays_dark_at_every_bit_depth(tmp_path: Path) -> None:
    dark = (film() // 8).astype(np.uint16)
    Image.fromarray(dark * 257).save(tmp_path / "dark.png")
    save_dicom(tmp_path / "dark.dcm", dark * 16)
    assert (decode(tmp_path / "dark.png") == dark).all()
    assert decode(tmp_path / "dark.dcm").max() == dark.max()


def test_levels_say_what_is_black_and_white_in_files_of_more_than_8_bits(tmp_path: Path) -> None:
    twelve = film().astype(np.uint16) * 16
    Image.fromarray(twelve).save(tmp_path / "12.png")
    save_dicom(tmp_path / "12.dcm", twelve, window=(100, 10))
    Image.fromarray(film()).save(tmp_path / "8.png")
    expected = grey_levels(twelve.astype(np.float64), 0, 4095)
    for name in ("12.png", "12.dcm"):
        assert (decode(tmp_path / name, levels=(0, 4095)) == expected).all()
    assert (decode(tmp_path / "8.png", levels=(0, 4095)) == film()).all()


@pytest.mark.parametrize("kind", ["LINEAR", "LINEAR_EXACT", "SIGMOID"])
def test_windows_are_those_of_pydicom(kind: str, tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    from pydicom.pixels.processing import apply_windowing

    raw = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    save_dicom(tmp_path / "a.dcm", raw, window=(1000, 400), VOILUTFunction=kind)
    reference = apply_windowing(raw, pydicom.dcmread(tmp_path / "a.dcm")) / 4095
    shares = share_of_window(raw.astype(np.float64), 1000, 400, kind)
    assert np.abs(shares - reference).max() < 1e-12
    assert (decode(tmp_path / "a.dcm") == np.rint(255 * reference)).all()


def test_a_table_of_dicom_goes_before_its_window(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    table = pydicom.Dataset()
    table.LUTDescriptor = [4096, 0, 16]
    table.LUTData = (65535 - np.arange(4096) * 16).astype("<u2").tobytes()
    table["LUTData"].VR = "OW"
    raw = film().astype(np.uint16) * 16
    save_dicom(tmp_path / "a.dcm", raw, window=(1, 1), VOILUTSequence=[table])
    assert np.abs(decode(tmp_path / "a.dcm").astype(int) - (255 - film())).max() <= 1


@pytest.mark.parametrize(
    ("tags", "says"),
    [
        ({"window": (5, 0)}, "a window without a width"),
        ({"window": (5, 9), "VOILUTFunction": "CUBIC"}, "a window of an unknown kind"),
        ({"RescaleSlope": 0, "RescaleIntercept": 1}, "rescaled to one"),
    ],
)
def test_a_dicom_that_has_no_grey_levels_says_why(
    tags: dict[str, object], says: str, tmp_path: Path
) -> None:
    save_dicom(tmp_path / "a.dcm", film().astype(np.uint16), **tags)
    with pytest.raises(BadImage, match=says):
        decode(tmp_path / "a.dcm")


def test_eight_bits_are_prepared_as_pillow_makes_them_grey(tmp_path: Path) -> None:
    """The rule that all data sets of 8 bits have had: luminance, then one bilinear resize."""
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        Image.fromarray(portrait()).convert(mode).save(tmp_path / "image.png")
        with Image.open(tmp_path / "image.png") as picture:
            expected = picture.convert("L").resize((32, 32), Image.Resampling.BILINEAR)
        assert (Recipe(32).of_file(tmp_path / "image.png") == np.asarray(expected)).all()


# ----------------------------------------------------------------------------------------- colours


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_pictures_in_colour_keep_it_where_three_channels_are_asked_for(
    mode: str, tmp_path: Path
) -> None:
    Image.fromarray(portrait()).convert(mode).save(tmp_path / "image.png")
    image = Recipe(30, channels=3).of_file(tmp_path / "image.png")
    assert image.shape == (30, 30, 3)
    tolerance = 30 if mode == "P" else 0  # of a palette of 256 colours
    for row, colour in zip((5, 15, 25), COLOURS, strict=True):
        assert np.abs(image[row].astype(int) - colour).max() <= tolerance


@pytest.mark.parametrize("photometric", ["RGB", "YBR_FULL"])
def test_dicom_in_colour_is_read_as_red_green_and_blue(photometric: str, tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    pixels = portrait()
    stored = pixels
    if photometric == "YBR_FULL":
        stored = np.asarray(Image.fromarray(pixels).convert("YCbCr"))
    save_dicom(
        tmp_path / "a.dcm",
        np.moveaxis(pixels, 2, 0),
        photometric,
        SamplesPerPixel=3,
        PlanarConfiguration=0,
        BitsAllocated=8,
        BitsStored=8,
        HighBit=7,
        PixelData=stored.tobytes(),
    )
    assert np.abs(decode(tmp_path / "a.dcm", 3).astype(int) - pixels).max() <= 3
    luminance = np.asarray(Image.fromarray(pixels).convert("L")).astype(int)
    assert np.abs(decode(tmp_path / "a.dcm") - luminance).max() <= 3


def test_grey_files_among_colours_have_three_equal_channels(tmp_path: Path) -> None:
    Image.fromarray(film()).save(tmp_path / "8.png")
    Image.fromarray(film().astype(np.uint16) * 257).save(tmp_path / "16.png")
    save_dicom(tmp_path / "a.dcm", film().astype(np.uint16) * 16)
    for name in ("8.png", "16.png", "a.dcm"):
        image = decode(tmp_path / name, channels=3)
        assert (image == decode(tmp_path / name)[..., None]).all()


def test_clahe_of_colours_changes_brightness_and_keeps_hues() -> None:
    image = np.repeat(film()[..., None], 3, axis=2) // np.array([1, 2, 4], np.uint8)
    equalised = Recipe(60, clahe=True, channels=3).apply(image)
    red, green, blue = np.moveaxis(equalised[equalised[..., 0] > 100].astype(float), -1, 0)
    assert np.abs(green / red - 0.5).max() < 0.05
    assert np.abs(blue / red - 0.25).max() < 0.05


# ------------------------------------------------------------------------------------------- shape


def test_a_portrait_is_squashed_padded_or_cropped() -> None:
    image = portrait(90, 30)
    squashed, padded, cropped = (
        Recipe(60, channels=3, fit=fit).apply(image) for fit in ("squash", "pad", "crop")
    )
    assert (squashed[10, 0] == COLOURS[0]).all()
    assert (padded[10, :20] == 0).all()
    assert (padded[10, 20:40] == COLOURS[0]).all()
    assert (padded[:, 40:] == 0).all()
    assert (cropped == COLOURS[1]).all()


def test_a_square_image_is_the_same_however_it_is_fitted() -> None:
    image = film(80, 80)
    for fit in ("pad", "crop"):
        assert (Recipe(32, clahe=True, fit=fit).apply(image) == Recipe(32, True).apply(image)).all()


def test_the_border_of_a_padded_image_stays_black_under_clahe() -> None:
    padded = Recipe(64, clahe=True, fit="pad").apply(film(100, 50))
    assert (padded[:, :16] == 0).all()
    assert padded[:, 16:48].max() == 255


# ------------------------------------------------------------------------------------------- cache


def test_keys_of_the_cache_change_where_pixels_do_and_nowhere_else(tmp_path: Path) -> None:
    Image.fromarray(film()).save(tmp_path / "8.png")
    Image.fromarray(film()).save(tmp_path / "film.jpg")
    Image.fromarray(film().astype(np.uint16) * 257).save(tmp_path / "16.png")
    save_dicom(tmp_path / "IM0001", film().astype(np.uint16))
    before = {"size": 32, "clahe": False, "kernel": 28, "clip": 0.02}
    assert Recipe(32).key() == before
    assert Recipe(32, channels=3).key() == before | {"channels": 3}
    assert Recipe(32, fit="pad").key() == before | {"fit": "pad"}
    for name in ("8.png", "film.jpg"):
        of_file = files(tmp_path, name)
        assert list(of_file.identity()) == [f"{name}\n{file_stamp(tmp_path / name)}"]
    for name in ("16.png", "IM0001"):
        assert len(list(files(tmp_path, name).identity())) == 2


def test_images_in_colour_are_memory_mapped_and_alike_in_one_process_and_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number:03d}.png" for number in range(140)]  # two chunks
    for number, name in enumerate(names):
        Image.fromarray(np.roll(portrait(), number, axis=0)).save(tmp_path / name)
    prepared = []
    for workers in (1, 2):
        monkeypatch.setenv("FEDDRAW_CACHE", str(tmp_path / f"cache-{workers}"))
        source = files(tmp_path, *names, channels=3)
        prepared.append(prepare_images(source, Recipe(16, channels=3), "colour", workers).images)
    alone, together = prepared
    assert isinstance(alone, np.memmap)
    assert alone.shape == (140, 16, 16, 3)
    assert (alone == together).all()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"channels": 2}, r"data\.channels must be 1 \(grey\) or 3 \(colour\), not 2"),
        ({"fit": "stretch"}, r"data\.fit must be one of squash, pad, crop"),
        ({"levels": [5, 5]}, r"data\.levels must be the values that become black and white"),
        ({"levels": "window"}, r"data\.levels must be the values"),
    ],
)
def test_settings_of_pixels_that_make_no_sense_are_one_line(
    settings: dict[str, object], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        ImagePreparation(**settings)


def test_an_archive_in_colour_says_what_to_set(tmp_path: Path) -> None:
    arrays = {}
    for split in ("train", "val", "test"):
        arrays[f"{split}_images"] = np.stack([np.roll(portrait(30, 30), n, 0) for n in range(6)])
        arrays[f"{split}_labels"] = np.arange(6)[:, None] % 2
    np.savez(tmp_path / "skin.npz", **arrays)
    with pytest.raises(UserError, match=r"images in colour: set data\.channels = 3"):
        open_dataset(str(tmp_path / "skin.npz"), size=30, options={})
    dataset = open_dataset(str(tmp_path / "skin.npz"), size=30, options={"channels": 3})
    assert (dataset.images[:6] == arrays["train_images"]).all()
    smaller = open_dataset(str(tmp_path / "skin.npz"), size=10, options={"channels": 3})
    assert (smaller.images[0, 1] == COLOURS[0]).all()


# -------------------------------------------------------------------------------------------- init


def test_facts_of_files_and_in_what_sites_differ(tmp_path: Path) -> None:
    Image.fromarray(portrait()).save(tmp_path / "colour.png")
    Image.fromarray(film()).convert("RGB").save(tmp_path / "grey.jpg")
    Image.fromarray(film().astype(np.uint16) * 16).save(tmp_path / "12.png")
    save_dicom(tmp_path / "a.dcm", film().astype(np.uint16), Modality="DX")
    colour, grey, twelve, dicom = (
        look_at(tmp_path / name) for name in ("colour.png", "grey.jpg", "12.png", "a.dcm")
    )
    assert (colour.in_colour, grey.in_colour) == (True, False)
    assert dicom.file_in_words == "DICOM DX 12 bits"
    by_site = {"north": [colour, grey], "south": [twelve, twelve]}
    assert facts_table({"north": [dicom]}) == [
        ["north", "1", "DICOM DX 12 bits", "100 × 120", "grey"]
    ]
    said = list(differences_in_words(by_site))
    assert any("differ in format or bit depth (north: PNG 8 bits (1), JPEG" in s for s in said)
    assert any("differ in colour (north: colour (1), grey (1); south: grey)" in s for s in said)
    assert any("16-bit PNGs of south reach 6 % of white" in s for s in said)
    assert not list(differences_in_words({"north": [dicom], "south": [dicom]}))
