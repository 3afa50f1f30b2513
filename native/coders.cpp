// Packed positions and entropy coders, bound to Python; also turns the kernels' errors into thinwire's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "wire.h"

namespace nb = nanobind;

namespace {

using Message = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Buffer = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Positions = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PositionsOut = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

thinwire::Bytes bytes_of(const Message &m) { return {m.data(), m.size()}; }

nb::tuple plan_indices(Positions indices, uint64_t numel) {
    thinwire::IndexPlan plan{};
    {
        nb::gil_scoped_release release;
        plan = thinwire::plan_indices(indices.data(), indices.size(), numel);
    }
    return nb::make_tuple(plan.tag, plan.rice, plan.size);
}

// `out` has the size that the plan says.
void write_indices(Positions indices, int tag, int rice, Buffer out) {
    nb::gil_scoped_release release;
    thinwire::write_indices(indices.data(), indices.size(), {tag, rice, out.size()}, out.data());
}

size_t count_indices(Message m, uint64_t numel) {
    nb::gil_scoped_release release;
    return thinwire::count_indices(bytes_of(m), numel);
}

// `out` has the length that count_indices says.
void read_indices(Message m, uint64_t numel, PositionsOut out) {
    nb::gil_scoped_release release;
    thinwire::read_indices(bytes_of(m), numel, out.data(), out.size());
}

template <size_t (*encode)(const uint8_t *, size_t, int, uint8_t *)>
size_t encode_symbols(Message symbols, int bits, Buffer out) {
    nb::gil_scoped_release release;
    if (out.size() < 1 + thinwire::packed_size(symbols.size(), bits))
        throw thinwire::CodecError("The buffer must hold a tag byte and the symbols as they are; allocate more.");
    return encode(symbols.data(), symbols.size(), bits, out.data());
}

template <void (*decode)(thinwire::Bytes, size_t, int, uint8_t *)>
void decode_symbols(Message m, int bits, Buffer out) {
    nb::gil_scoped_release release;
    decode(bytes_of(m), out.size(), bits, out.data());
}

void translate(const std::exception_ptr &thrown, void *wire_error) {
    try {
        std::rethrow_exception(thrown);
    } catch (const thinwire::WireError &e) {
        PyErr_SetString(static_cast<PyObject *>(wire_error), e.what());
    }
}

void translate_codec(const std::exception_ptr &thrown, void *codec_error) {
    try {
        std::rethrow_exception(thrown);
    } catch (const thinwire::CodecError &e) {
        PyErr_SetString(static_cast<PyObject *>(codec_error), e.what());
    }
}

}  // namespace

void bind_coders(nb::module_ &m) {
    const nb::module_ errors = nb::module_::import_("thinwire.errors");
    nb::register_exception_translator(translate, nb::object(errors.attr("WireError")).release().ptr());
    nb::register_exception_translator(translate_codec, nb::object(errors.attr("CodecError")).release().ptr());

    const auto indices = nb::arg("indices").noconvert();
    const auto message = nb::arg("message").noconvert();
    const auto symbols = nb::arg("symbols").noconvert();
    const auto out = nb::arg("out").noconvert();
    const auto bits = nb::arg("bits");
    const auto numel = nb::arg("numel");
    m.def("plan_indices", &plan_indices, indices, numel);
    m.def("write_indices", &write_indices, indices, nb::arg("tag"), nb::arg("rice"), out);
    m.def("count_indices", &count_indices, message, numel);
    m.def("read_indices", &read_indices, message, numel, out);
    m.def("huffman_encode", &encode_symbols<thinwire::huffman_encode>, symbols, bits, out);
    m.def("huffman_decode", &decode_symbols<thinwire::huffman_decode>, message, bits, out);
    m.def("elias_encode", &encode_symbols<thinwire::elias_encode>, symbols, bits, out);
    m.def("elias_decode", &decode_symbols<thinwire::elias_decode>, message, bits, out);
}
