"""The few calls of the CUDA driver that the check makes itself, by ctypes: no package is needed."""

import ctypes
import time

SUCCESS = 0
HANDLE_FABRIC = 8
ON_DEVICE, PINNED = 1, 1
GRANULE = 2 << 20
LOCAL_BYTES, REGISTERS = 3, 4


class Failed(Exception):
    """A call of the driver answered an error."""


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    """CUmemAllocationProp"""
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("windows", ctypes.c_void_p),
                ("flags", ctypes.c_ubyte * 8)]


def no_gpu():
    """Why there is no GPU, or None."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"libcuda.so.1 cannot be loaded: {error}"
    code, count = library.cuInit(0), ctypes.c_int()
    if code == SUCCESS:
        code = library.cuDeviceGetCount(ctypes.byref(count))
    return f"the driver answers {code}" if code else None if count.value else "the driver shows no GPU"


class Gpu:
    """The driver, with the primary context of GPU 0."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.context = self.pointer("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", self.context)

    def code(self, name, *arguments):
        """The code that a call answers, as text."""
        code, text = getattr(self.library, name)(*arguments), ctypes.c_char_p()
        self.library.cuGetErrorName(code, ctypes.byref(text))
        return code, (text.value or str(code).encode()).decode()

    def call(self, name, *arguments):
        code, text = self.code(name, *arguments)
        if code != SUCCESS:
            raise Failed(f"{name}: {text}")

    def pointer(self, name, *arguments):
        """What a call puts into its first argument."""
        place = ctypes.c_void_p()
        self.call(name, ctypes.byref(place), *arguments)
        return place

    def number(self, name, *arguments):
        place = ctypes.c_int()
        self.call(name, ctypes.byref(place), *arguments)
        return place.value

    def attribute(self, number):
        return self.number("cuDeviceGetAttribute", number, self.device)

    def capability(self):
        return self.attribute(75), self.attribute(76)

    def name(self):
        text = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", text, 128, self.device)
        return text.value.decode(errors="replace")

    def total_bytes(self):
        place = ctypes.c_size_t()
        self.call("cuDeviceTotalMem_v2", ctypes.byref(place), self.device)
        return place.value

    def fabric(self):
        """What the driver answers where such memory is asked for, whatever its attribute says."""
        wanted, handle = Properties(PINNED, HANDLE_FABRIC, Location(ON_DEVICE, 0), None), ctypes.c_ulonglong()
        code, text = self.code("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(GRANULE), ctypes.byref(wanted), ctypes.c_ulonglong(0))
        if code == SUCCESS:
            self.call("cuMemRelease", handle)
        return text

    def module(self, image):
        """A module, and the milliseconds that loading it took."""
        begun = time.perf_counter()
        module = self.pointer("cuModuleLoadData", image + b"\0")
        return module, (time.perf_counter() - begun) * 1e3

    def function(self, module, name):
        return self.pointer("cuModuleGetFunction", module, name.encode())

    def function_attribute(self, function, which):
        return self.number("cuFuncGetAttribute", which, function)

    def copy_us(self, size, times):
        """The least time of a copy of so many bytes inside the GPU's memory, by events around some."""
        places = [self.pointer("cuMemAlloc_v2", ctypes.c_size_t(size)) for _ in range(2)]
        stream = self.pointer("cuStreamCreate", 1)
        events = [self.pointer("cuEventCreate", 0) for _ in range(2)]
        for place in places:
            self.call("cuMemsetD8Async", place, 1, ctypes.c_size_t(size), stream)
        best = float("inf")
        for _ in range(3):
            self.call("cuEventRecord", events[0], stream)
            for _ in range(times):
                self.call("cuMemcpyDtoDAsync_v2", places[0], places[1], ctypes.c_size_t(size), stream)
            self.call("cuEventRecord", events[1], stream)
            self.call("cuStreamSynchronize", stream)
            taken = ctypes.c_float()
            self.call("cuEventElapsedTime", ctypes.byref(taken), *events)
            best = min(best, taken.value * 1e3 / times)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        self.call("cuStreamDestroy_v2", stream)
        for place in places:
            self.call("cuMemFree_v2", place)
        return best
