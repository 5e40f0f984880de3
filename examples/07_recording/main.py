"""A camera into a recording, what is in it, and the same frames once more from the recording."""

import tempfile

import numpy as np

import framepool as fp
from framepool.agent import Runner
from framepool.recorder.replay import Replay

CAMERA, AGAIN = 10_000, 10_005

with tempfile.TemporaryDirectory() as place, fp.serve() as pool:
    camera = pool.producer(CAMERA, name="camera", metadata={"exposure_ms": 2.5})

    with fp.Recorder(pool, f"{place}/flight-7", streams=[CAMERA]) as recorder:
        for number in range(100):
            camera.publish(np.full((480, 640), number, np.uint16))
            if number % 10 == 9:
                recorder.flush()  # durable up to here; a program that runs for hours leaves that to the recorder

    recording = fp.Recording(f"{place}/flight-7")
    lost = sum(row.loss.frames or 0 for row in recording.losses())
    print(f"recording: {len(recording)} frames recorded, {lost} lost, of 100 published")

    bright = max(recording.stream(CAMERA), key=lambda frame: frame.array.mean())  # arrays on the mapped file
    print(f"recording: the brightest is frame {bright.seq}, {bright.dtype} {bright.shape}")

    again = pool.producer(AGAIN)
    eye = pool.consumer(AGAIN)
    replay = Replay(recording, {CAMERA: again}, speed=0.1, wait_for_readers=True)  # in slow motion
    with Runner(replay).start():
        frame = next(eye)
        same = recording[frame.seq]
        bytes_, time = frame.copy().tobytes() == bytes(same.payload), frame.timestamp_ns == same.timestamp_ns
        print(f"replay: the same bytes {bytes_}, the same time {time}")
