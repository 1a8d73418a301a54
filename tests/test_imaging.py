"""Decoding, resizing, CLAHE and augmentation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from skimage.exposure import equalize_adapthist

from feddraw.data import imaging
from feddraw.data.image_folder import files_below
from feddraw.data.imaging import BadImage, Recipe, clahe, decode, resize
from feddraw.training.augment import augment


def film(height=120, width=100, seed=0):
    """A smooth bright shape on a dark ground with some grain."""
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    grain = np.random.default_rng(seed).normal(0, 6, (height, width))
    return np.clip(220 * np.exp(-2 * (x**2 + (y - 0.2) ** 2)) + grain + 20, 0, 255).astype(np.uint8)


def save_dicom(
    path: Path, pixels, photometric="MONOCHROME2", *, window=None, frames=1, syntax=None, **tags
):
    """A DICOM file of 12 bits; `tags` are further ones by their keyword."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    file.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    file.SOPClassUID, file.SOPInstanceUID = file.file_meta.MediaStorageSOPClassUID, generate_uid()
    file.Rows, file.Columns = pixels.shape[-2:]
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, photometric
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 12, 11, 0
    if frames > 1:
        file.NumberOfFrames = frames
    if window:
        file.WindowCenter, file.WindowWidth = window
    file.PixelData = pixels.astype("<u2").tobytes()
    for tag, value in tags.items():
        setattr(file, tag, value)
    file.save_as(path, enforce_file_format=True)


def test_png_and_jpeg_of_every_mode_decode_to_the_same_grey(tmp_path):
    grey = film()
    for mode in ("L", "RGB", "RGBA", "P"):
        Image.fromarray(grey).convert(mode).save(tmp_path / f"{mode}.png")
        assert np.abs(decode(tmp_path / f"{mode}.png").astype(int) - grey).max() <= 1
    Image.fromarray(grey).save(tmp_path / "film.jpg", quality=95)
    assert np.abs(decode(tmp_path / "film.jpg").astype(int) - grey).mean() < 3


def test_a_dicom_file_is_known_by_its_content_not_its_name(tmp_path):
    save_dicom(tmp_path / "image", film().astype(np.uint16))
    assert decode(tmp_path / "image").shape == (120, 100)


def test_several_frames_and_deflated_dicom_are_refused(tmp_path):
    pytest.importorskip("pydicom")
    save_dicom(tmp_path / "two.dcm", np.stack([film(), film()]), frames=2)
    with pytest.raises(BadImage, match="2 frames"):
        decode(tmp_path / "two.dcm")
    save_dicom(tmp_path / "deflated.dcm", film(), syntax="1.2.840.10008.1.2.1.99")
    with pytest.raises(BadImage, match="deflated"):
        decode(tmp_path / "deflated.dcm")


@pytest.mark.parametrize("tag", ["Rows", "PhotometricInterpretation", "PixelData"])
def test_a_dicom_file_without_a_tag_says_which(tmp_path, tag):
    pydicom = pytest.importorskip("pydicom")
    save_dicom(tmp_path / "film.dcm", film().astype(np.uint16))
    file = pydicom.dcmread(tmp_path / "film.dcm")
    delattr(file, tag)
    file.save_as(tmp_path / "film.dcm")
    named = "pixels" if tag == "PixelData" else tag
    with pytest.raises(BadImage, match=f"^a DICOM file without {named}$"):
        decode(tmp_path / "film.dcm")


def test_dicom_files_of_a_folder_need_no_ending_and_other_files_are_counted(tmp_path):
    pytest.importorskip("pydicom")
    (tmp_path / "below").mkdir()
    save_dicom(tmp_path / "IM0001", film().astype(np.uint16))
    save_dicom(tmp_path / "below" / "1.2.840.7", film().astype(np.uint16))
    (tmp_path / "a.tif").write_bytes(b"II*")
    (tmp_path / ".hidden").write_bytes(b"")
    (tmp_path / ".Trash").mkdir()
    (tmp_path / ".Trash" / "old.png").write_bytes(b"")
    found = files_below(tmp_path)
    assert [path.name for path in found.images] == ["IM0001", "1.2.840.7"]
    assert found.left_out_in_words() == [
        "1 file is not PNG, JPEG or DICOM and not used: 1 .tif",
        "hidden folders are not used: .Trash (1 image)",
    ]


def test_a_linked_folder_is_named_and_one_that_cannot_be_read_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "north").mkdir()
    (tmp_path / "south").symlink_to(tmp_path)
    assert files_below(tmp_path).left_out_in_words() == ["links to folders are not followed: south"]

    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refused)  # root may read everything
    with pytest.raises(PermissionError):
        files_below(tmp_path)


def test_truncated_and_foreign_files_are_bad_images_with_a_reason(tmp_path):
    Image.fromarray(film()).save(tmp_path / "film.png")
    Image.fromarray(film()).save(tmp_path / "film.jpg")
    save_dicom(tmp_path / "film.dcm", film())
    for name in ("film.png", "film.jpg", "film.dcm"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(BadImage):
            decode(tmp_path / name)
    for content in (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"hello",
        b"GIF89a" + bytes(200),
        bytes(128) + b"DICM" + bytes(50),
    ):
        (tmp_path / "no.png").write_bytes(content)
        with pytest.raises(BadImage) as refused:
            decode(tmp_path / "no.png")
        assert "Read" not in str(refused.value)  # Pillow's "Truncated File Read" says little
    with pytest.raises(BadImage, match="no such file"):
        decode(tmp_path / "missing.png")


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    Image.new("1", (9_000, 8_000)).save(tmp_path / "large.png")
    Image.new("1", (20_000, 10_000)).save(tmp_path / "bomb.png")
    assert (tmp_path / "bomb.png").stat().st_size < 100_000
    with monkeypatch.context() as patch:
        patch.setattr(Image.Image, "load", lambda *_: pytest.fail("unpacked"))
        with pytest.raises(BadImage, match="9,000 × 8,000 pixels"):
            decode(tmp_path / "large.png")
        with pytest.raises(BadImage, match="200000000 pixels"):
            decode(tmp_path / "bomb.png")
    monkeypatch.setattr(imaging, "MAX_PIXELS", 1000)
    save_dicom(tmp_path / "large.dcm", film())
    with pytest.raises(BadImage, match="pixels"):
        decode(tmp_path / "large.dcm")


@pytest.mark.parametrize("size", [28, 64, 224])
def test_clahe_is_that_of_scikit_image(size):
    image = resize(film(300, 300), size, size)
    reference = equalize_adapthist(image, kernel_size=28, clip_limit=0.02)
    assert np.abs(clahe(image) - 255 * reference).max() <= 1


def test_a_flat_image_stays_as_it_is():
    flat = np.full((64, 64), 77, dtype=np.uint8)
    assert (Recipe(64, clahe=True).apply(flat) == 77).all()


def test_resizing_comes_before_clahe_and_gives_a_square():
    image = film(150, 90)
    assert (Recipe(64, clahe=True).apply(image) == clahe(resize(image, 64, 64))).all()
    assert Recipe(32).apply(image).shape == (32, 32)


def test_halving_keeps_the_mean():
    image = film(64, 64)
    assert abs(resize(image, 32, 32).mean() - image.mean()) < 1


# ------------------------------------------------------------------------------------- augmentation


def batch(count=8, size=32):
    return (
        torch.from_numpy(np.stack([film(size, size, seed) for seed in range(count)]))[
            :, None
        ].float()
        / 255
    )


def test_augmentation_without_range_changes_nothing():
    images = batch()
    same = augment(images, torch.Generator().manual_seed(0), 0, 0, (1, 1))
    torch.testing.assert_close(same, images, atol=1e-5, rtol=0)


def test_the_seed_decides_and_the_global_state_does_not():
    images, state = batch(), torch.get_rng_state()
    first = augment(images, torch.Generator().manual_seed(3))
    torch.rand(7)
    assert torch.equal(first, augment(images, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, augment(images, torch.Generator().manual_seed(4)))
    torch.set_rng_state(state)


def test_images_move_by_at_most_the_translation():
    size = 101
    dot = torch.zeros(200, 1, size, size)
    dot[:, 0, 50, 50] = 1
    moved = augment(dot, torch.Generator().manual_seed(0), 0, 0.09, (1, 1))[:, 0]
    rows, columns = moved.sum(2).argmax(1) - 50, moved.sum(1).argmax(1) - 50
    for shift in (rows, columns):
        assert 8 <= shift.abs().max() <= 0.09 * size + 0.5
        assert shift.min() < 0 < shift.max()


def test_rotation_and_scale_stay_in_their_ranges():
    size = 201
    dot = torch.zeros(200, 1, size, size)
    dot[:, 0, 99:102, 159:162] = 1  # 60 pixels right of the middle
    turned = augment(dot, torch.Generator().manual_seed(1), 8, 0, (0.95, 1.05))[:, 0]
    y, x = torch.meshgrid(*[torch.arange(size) - 100.0] * 2, indexing="ij")
    mass = turned.sum((1, 2))
    middle_y, middle_x = (turned * y).sum((1, 2)) / mass, (turned * x).sum((1, 2)) / mass
    angles, radii = (
        torch.rad2deg(torch.atan2(middle_y, middle_x)),
        torch.hypot(middle_x, middle_y) / 60,
    )
    assert 7 < angles.abs().max() < 8.2
    assert 0.945 < radii.min() < 0.96
    assert 1.04 < radii.max() < 1.055


def test_the_border_is_repeated_not_blackened():
    white = torch.ones(50, 1, 32, 32)
    torch.testing.assert_close(augment(white, torch.Generator().manual_seed(0)), white)
