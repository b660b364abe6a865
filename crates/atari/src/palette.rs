//! Palette indices as colours and as shades of grey.
//!
//! The two tables are the 128 colours of NTSC and PAL televisions; odd indices are colours that a
//! PAL television has lost.

use crate::properties::Format;

/// The colour of a palette index: red, green, blue.
#[must_use]
pub fn rgb(format: Format, index: u8) -> [u8; 3] {
    let colour = table(format)[usize::from(index >> 1)];
    let [_, red, green, blue] = colour.to_be_bytes();
    if index & 1 == 0 {
        [red, green, blue]
    } else {
        [luminance([red, green, blue]); 3]
    }
}

/// The grey of a palette index, as the Arcade Learning Environment gives it.
#[must_use]
pub fn gray(format: Format, index: u8) -> u8 {
    if index & 1 == 0 {
        luminance(rgb(format, index))
    } else {
        LOST_GRAY[usize::from(index >> 1)]
    }
}

/// The greys of all indices of a format.
#[must_use]
pub fn grays(format: Format) -> [u8; 256] {
    std::array::from_fn(|index| gray(format, index as u8))
}

fn table(format: Format) -> &'static [u32; 128] {
    match format {
        Format::Ntsc => &NTSC,
        Format::Pal => &PAL,
    }
}

fn luminance([red, green, blue]: [u8; 3]) -> u8 {
    (0.2989 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue)).round() as u8
}

/// The colours of the even indices on NTSC television, red in the top byte.
const NTSC: [u32; 128] = [
    0x00_0000, 0x4A_4A4A, 0x6F_6F6F, 0x8E_8E8E, 0xAA_AAAA, 0xC0_C0C0, 0xD6_D6D6, 0xEC_ECEC,
    0x48_4800, 0x69_690F, 0x86_861D, 0xA2_A22A, 0xBB_BB35, 0xD2_D240, 0xE8_E84A, 0xFC_FC54,
    0x7C_2C00, 0x90_4811, 0xA2_6221, 0xB4_7A30, 0xC3_903D, 0xD2_A44A, 0xDF_B755, 0xEC_C860,
    0x90_1C00, 0xA3_3915, 0xB5_5328, 0xC6_6C3A, 0xD5_824A, 0xE3_9759, 0xF0_AA67, 0xFC_BC74,
    0x94_0000, 0xA7_1A1A, 0xB8_3232, 0xC8_4848, 0xD6_5C5C, 0xE4_6F6F, 0xF0_8080, 0xFC_9090,
    0x84_0064, 0x97_197A, 0xA8_308F, 0xB8_46A2, 0xC6_59B3, 0xD4_6CC3, 0xE0_7CD2, 0xEC_8CE0,
    0x50_0084, 0x68_199A, 0x7D_30AD, 0x92_46C0, 0xA4_59D0, 0xB5_6CE0, 0xC5_7CEE, 0xD4_8CFC,
    0x14_0090, 0x33_1AA3, 0x4E_32B5, 0x68_48C6, 0x7F_5CD5, 0x95_6FE3, 0xA9_80F0, 0xBC_90FC,
    0x00_0094, 0x18_1AA7, 0x2D_32B8, 0x42_48C8, 0x54_5CD6, 0x65_6FE4, 0x75_80F0, 0x84_90FC,
    0x00_1C88, 0x18_3B9D, 0x2D_57B0, 0x42_72C2, 0x54_8AD2, 0x65_A0E1, 0x75_B5EF, 0x84_C8FC,
    0x00_3064, 0x18_5080, 0x2D_6D98, 0x42_88B0, 0x54_A0C5, 0x65_B7D9, 0x75_CCEB, 0x84_E0FC,
    0x00_4030, 0x18_624E, 0x2D_8169, 0x42_9E82, 0x54_B899, 0x65_D1AE, 0x75_E7C2, 0x84_FCD4,
    0x00_4400, 0x1A_661A, 0x32_8432, 0x48_A048, 0x5C_BA5C, 0x6F_D26F, 0x80_E880, 0x90_FC90,
    0x14_3C00, 0x35_5F18, 0x52_7E2D, 0x6E_9C42, 0x87_B754, 0x9E_D065, 0xB4_E775, 0xC8_FC84,
    0x30_3800, 0x50_5916, 0x6D_762B, 0x88_923E, 0xA0_AB4F, 0xB7_C25F, 0xCC_D86E, 0xE0_EC7C,
    0x48_2C00, 0x69_4D14, 0x86_6A26, 0xA2_8638, 0xBB_9F47, 0xD2_B656, 0xE8_CC63, 0xFC_E070,
];

/// The colours of the even indices on PAL television, red in the top byte.
const PAL: [u32; 128] = [
    0x00_0000, 0x2B_2B2B, 0x52_5252, 0x76_7676, 0x97_9797, 0xB6_B6B6, 0xD2_D2D2, 0xEC_ECEC,
    0x00_0000, 0x2B_2B2B, 0x52_5252, 0x76_7676, 0x97_9797, 0xB6_B6B6, 0xD2_D2D2, 0xEC_ECEC,
    0x80_5800, 0x96_711A, 0xAB_8732, 0xBE_9C48, 0xCF_AF5C, 0xDF_C06F, 0xEE_D180, 0xFC_E090,
    0x44_5C00, 0x5E_791A, 0x76_9332, 0x8C_AC48, 0xA0_C25C, 0xB3_D76F, 0xC4_EA80, 0xD4_FC90,
    0x70_3400, 0x89_511A, 0xA0_6B32, 0xB6_8448, 0xC9_9A5C, 0xDC_AF6F, 0xEC_C280, 0xFC_D490,
    0x00_6414, 0x1A_8035, 0x32_9852, 0x48_B06E, 0x5C_C587, 0x6F_D99E, 0x80_EBB4, 0x90_FCC8,
    0x70_0014, 0x89_1A35, 0xA0_3252, 0xB6_486E, 0xC9_5C87, 0xDC_6F9E, 0xEC_80B4, 0xFC_90C8,
    0x00_5C5C, 0x1A_7676, 0x32_8E8E, 0x48_A4A4, 0x5C_B8B8, 0x6F_CBCB, 0x80_DCDC, 0x90_ECEC,
    0x70_005C, 0x84_1A74, 0x96_3289, 0xA8_489E, 0xB7_5CB0, 0xC6_6FC1, 0xD3_80D1, 0xE0_90E0,
    0x00_3C70, 0x19_5A89, 0x2F_75A0, 0x44_8EB6, 0x57_A5C9, 0x68_BADC, 0x79_CEEC, 0x88_E0FC,
    0x58_0070, 0x6E_1A89, 0x83_32A0, 0x96_48B6, 0xA7_5CC9, 0xB7_6FDC, 0xC6_80EC, 0xD4_90FC,
    0x00_2070, 0x19_3F89, 0x2F_5AA0, 0x44_74B6, 0x57_8BC9, 0x68_A1DC, 0x79_B5EC, 0x88_C8FC,
    0x34_0080, 0x4A_1A96, 0x5F_32AB, 0x72_48BE, 0x83_5CCF, 0x93_6FDF, 0xA2_80EE, 0xB0_90FC,
    0x00_0088, 0x1A_1A9D, 0x32_32B0, 0x48_48C2, 0x5C_5CD2, 0x6F_6FE1, 0x80_80EF, 0x90_90FC,
    0x00_0000, 0x2B_2B2B, 0x52_5252, 0x76_7676, 0x97_9797, 0xB6_B6B6, 0xD2_D2D2, 0xEC_ECEC,
    0x00_0000, 0x2B_2B2B, 0x52_5252, 0x76_7676, 0x97_9797, 0xB6_B6B6, 0xD2_D2D2, 0xEC_ECEC,
];

/// The greys that the reference gives to lost colours; they are not those of its own colours.
const LOST_GRAY: [u8; 128] = [
    43, 82, 118, 151, 182, 210, 236, 0, 43, 82, 118, 151, 182, 210, 236, 0, 26, 50, 72, 92, 111,
    128, 144, 0, 26, 50, 72, 92, 111, 128, 144, 0, 26, 50, 72, 92, 111, 128, 144, 20, 53, 82, 110,
    135, 158, 180, 200, 20, 53, 82, 110, 135, 158, 180, 200, 92, 118, 142, 164, 184, 203, 220, 236,
    92, 116, 137, 158, 176, 193, 209, 224, 112, 137, 160, 182, 201, 220, 236, 252, 112, 137, 160,
    182, 201, 220, 236, 252, 112, 137, 160, 182, 201, 220, 236, 252, 128, 150, 171, 190, 207, 223,
    238, 252, 136, 157, 176, 194, 210, 225, 239, 252, 0, 43, 82, 118, 151, 182, 210, 236, 0, 43,
    82, 118, 151, 182, 210, 236, 0,
];
