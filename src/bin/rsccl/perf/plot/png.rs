//! Images as PNG files. A plot is mostly white, and takes little room compressed.

use miniz_oxide::deflate::compress_to_vec_zlib;

/// The file of an image of `width` columns, three bytes for each pixel.
pub(super) fn encode(width: usize, pixels: &[u8]) -> Vec<u8> {
    let rows: Vec<&[u8]> = pixels.chunks_exact(width * 3).collect();
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes();
    let mut header = Vec::new();
    header.extend(number(width));
    header.extend(number(rows.len()));
    // 8 bits for each of red, green and blue; the only compression, filter and order that there are.
    header.extend([8, 2, 0, 0, 0]);
    // Each row begins with its filter: none.
    let data: Vec<u8> = rows.iter().flat_map(|row| std::iter::once(&0).chain(*row)).copied().collect();
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    chunk(&mut file, b"IHDR", &header);
    chunk(&mut file, b"IDAT", &compress_to_vec_zlib(&data, COMPRESSION));
    chunk(&mut file, b"IEND", &[]);
    file
}

fn chunk(file: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    file.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
    let start = file.len();
    file.extend(kind);
    file.extend(data);
    let sum = crc32(&file[start..]);
    file.extend(sum.to_be_bytes());
}

/// The check sum of a chunk (RFC 2083, annex D).
fn crc32(bytes: &[u8]) -> u32 {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    !sum
}

/// Ten is the most.
const COMPRESSION: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_documents() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b"IEND"), 0xae42_6082);
    }

    #[test]
    fn a_file_has_its_size_and_all_pixels() {
        let file = encode(2, &[1; 2 * 3 * 3]);
        assert_eq!(file[..8], *b"\x89PNG\r\n\x1a\n");
        assert_eq!(file[16..24], [0, 0, 0, 2, 0, 0, 0, 3]);
        // Three rows of a filter byte and six others.
        let length = u32::from_be_bytes(file[33..37].try_into().unwrap()) as usize;
        assert_eq!(file[37..41], *b"IDAT");
        let data = miniz_oxide::inflate::decompress_to_vec_zlib(&file[41..41 + length]).unwrap();
        assert_eq!(data, [0, 1, 1, 1, 1, 1, 1].repeat(3));
        assert_eq!(file[file.len() - 12..], *b"\0\0\0\0IEND\xae\x42\x60\x82");
    }
}
